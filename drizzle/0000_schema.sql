CREATE SCHEMA "sluice";
--> statement-breakpoint
CREATE SEQUENCE "sluice"."job_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1;--> statement-breakpoint
CREATE TABLE "sluice"."attempts" (
	"job_id" uuid NOT NULL,
	"number" integer NOT NULL,
	"epoch" integer NOT NULL,
	"worker_id" uuid NOT NULL,
	"outcome" text NOT NULL,
	"charged" text NOT NULL,
	"status" smallint,
	"started_at" timestamp with time zone NOT NULL,
	"sent_at" timestamp with time zone,
	"ended_at" timestamp with time zone NOT NULL,
	"slot_wait_ms" integer,
	"retry_after_ms" bigint,
	"retry_after_capped" boolean DEFAULT false NOT NULL,
	"excerpt" text,
	"truncated" boolean DEFAULT false NOT NULL,
	"sha256" "bytea",
	"error" text,
	"late_outcome" text,
	"late_status" smallint,
	"late_at" timestamp with time zone,
	CONSTRAINT "attempts_pkey" PRIMARY KEY("job_id","number")
);
--> statement-breakpoint
CREATE TABLE "sluice"."batch_items" (
	"batch_id" uuid NOT NULL,
	"index" integer NOT NULL,
	"idempotency_key" text COLLATE "C",
	"key_source" text,
	"verdict" text NOT NULL,
	"job_id" uuid,
	"job_state" text,
	"errors" text,
	CONSTRAINT "batch_items_pkey" PRIMARY KEY("batch_id","index")
);
--> statement-breakpoint
CREATE TABLE "sluice"."batches" (
	"id" uuid PRIMARY KEY NOT NULL,
	"tenant" text COLLATE "C" NOT NULL,
	"correlation_id" text,
	"request_key" text COLLATE "C",
	"request_fingerprint" "bytea",
	"total" integer NOT NULL,
	"accepted" integer NOT NULL,
	"duplicate" integer NOT NULL,
	"conflict" integer NOT NULL,
	"rejected" integer NOT NULL,
	"cancelled_at" timestamp with time zone,
	"created_at" timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
--> statement-breakpoint
CREATE TABLE "sluice"."cooldowns" (
	"kind" text NOT NULL,
	"name" text COLLATE "C" NOT NULL,
	"partition_key" text COLLATE "C" DEFAULT '' NOT NULL,
	"until" timestamp with time zone NOT NULL,
	"ramp" integer,
	"in_row" integer DEFAULT 0 NOT NULL,
	"reason" text NOT NULL,
	"status" integer,
	"header" text,
	"job_id" uuid,
	"at" timestamp with time zone NOT NULL,
	CONSTRAINT "cooldowns_pkey" PRIMARY KEY("kind","name","partition_key")
);
--> statement-breakpoint
CREATE TABLE "sluice"."definition_version" (
	"only_row" boolean PRIMARY KEY DEFAULT true NOT NULL,
	"version" bigint DEFAULT 0 NOT NULL
);
--> statement-breakpoint
CREATE TABLE "sluice"."done_jobs" (
	"job_id" uuid PRIMARY KEY NOT NULL,
	"state" text NOT NULL,
	"reason" text,
	"evidence" text,
	"status" smallint,
	"ended_at" timestamp with time zone NOT NULL,
	"epoch" integer DEFAULT 0 NOT NULL,
	"calls" integer DEFAULT 0 NOT NULL,
	"attempts_used" integer DEFAULT 0 NOT NULL,
	"throttles" integer DEFAULT 0 NOT NULL,
	"first_sent_at" timestamp with time zone,
	"outcome_unknown" boolean DEFAULT false NOT NULL
);
--> statement-breakpoint
CREATE TABLE "sluice"."idempotency_keys" (
	"tenant" text COLLATE "C" NOT NULL,
	"key" text COLLATE "C" NOT NULL,
	"fingerprint" "bytea" NOT NULL,
	"job_id" uuid NOT NULL,
	"created_at" timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT "idempotency_keys_pkey" PRIMARY KEY("tenant","key")
);
--> statement-breakpoint
CREATE TABLE "sluice"."jobs" (
	"id" uuid PRIMARY KEY NOT NULL,
	"tenant" text COLLATE "C" NOT NULL,
	"batch_id" uuid NOT NULL,
	"lane_id" bigint NOT NULL,
	"rank" integer NOT NULL,
	"seq" bigint NOT NULL,
	"queue" text COLLATE "C" NOT NULL,
	"upstream" text COLLATE "C" NOT NULL,
	"partition_key" text COLLATE "C" DEFAULT '' NOT NULL,
	"idempotency_key" text COLLATE "C" NOT NULL,
	"key_source" text NOT NULL,
	"method" text NOT NULL,
	"path" text NOT NULL,
	"headers" text,
	"body" text,
	"body_is_text" boolean DEFAULT false NOT NULL,
	"cost" integer DEFAULT 1 NOT NULL,
	"max_attempts" integer,
	"payload_version" text,
	"correlation_id" text,
	"run_at" timestamp with time zone,
	"expires_at" timestamp with time zone,
	"created_at" timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
--> statement-breakpoint
CREATE TABLE "sluice"."lane_groups" (
	"id" integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "sluice"."lane_groups_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 2147483647 START WITH 1 CACHE 1),
	"queue" text COLLATE "C" NOT NULL,
	"upstream" text COLLATE "C" NOT NULL,
	"fifo" boolean DEFAULT false NOT NULL,
	"shared_limits" text[] DEFAULT '{}' NOT NULL,
	"partition_limits" text[] DEFAULT '{}' NOT NULL,
	"counted" boolean DEFAULT false NOT NULL,
	"next_at" timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
	"closed_by" text,
	"closed_name" text
);
--> statement-breakpoint
CREATE TABLE "sluice"."lanes" (
	"id" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "sluice"."lanes_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"group_id" integer NOT NULL,
	"tenant" text COLLATE "C" NOT NULL,
	"partition_key" text COLLATE "C" NOT NULL,
	"next_at" timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
	"closed_by" text,
	"closed_name" text,
	"emptied_at" timestamp with time zone
);
--> statement-breakpoint
CREATE TABLE "sluice"."parked_jobs" (
	"job_id" uuid PRIMARY KEY NOT NULL,
	"lane_id" bigint NOT NULL,
	"rank" integer NOT NULL,
	"seq" bigint NOT NULL,
	"state" text NOT NULL,
	"reason" text,
	"due_at" timestamp with time zone,
	"cost" integer NOT NULL,
	"expires_at" timestamp with time zone,
	"epoch" integer DEFAULT 0 NOT NULL,
	"calls" integer DEFAULT 0 NOT NULL,
	"attempts_used" integer DEFAULT 0 NOT NULL,
	"throttles" integer DEFAULT 0 NOT NULL,
	"first_sent_at" timestamp with time zone,
	"outcome_unknown" boolean DEFAULT false NOT NULL
);
--> statement-breakpoint
CREATE TABLE "sluice"."queues" (
	"name" text COLLATE "C" PRIMARY KEY NOT NULL,
	"definition" jsonb NOT NULL,
	"revision" integer DEFAULT 0 NOT NULL,
	"updated_at" timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
--> statement-breakpoint
CREATE TABLE "sluice"."rate_limits" (
	"name" text COLLATE "C" PRIMARY KEY NOT NULL,
	"limit" integer,
	"per_seconds" integer NOT NULL,
	"algorithm" text NOT NULL,
	"burst" integer DEFAULT 0 NOT NULL,
	"slack_ms" integer DEFAULT 25 NOT NULL,
	"max_in_flight" integer,
	"by_partition" boolean DEFAULT false NOT NULL,
	"shares_cooldown" boolean DEFAULT false NOT NULL,
	"upstreams" text[] NOT NULL,
	"queues" text[] NOT NULL,
	"revision" integer DEFAULT 0 NOT NULL,
	"deleted_at" timestamp with time zone,
	"updated_at" timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
--> statement-breakpoint
CREATE TABLE "sluice"."rate_windows" (
	"limit_name" text COLLATE "C" NOT NULL,
	"partition_key" text COLLATE "C" DEFAULT '' NOT NULL,
	"algorithm" text NOT NULL,
	"width_us" bigint DEFAULT 0 NOT NULL,
	"horizon_us" bigint DEFAULT 0 NOT NULL,
	"ring" integer[],
	"head" bigint DEFAULT 0 NOT NULL,
	"tail" bigint DEFAULT 0 NOT NULL,
	"used" bigint DEFAULT 0 NOT NULL,
	"anchor_at" timestamp with time zone,
	"level" double precision DEFAULT 0 NOT NULL,
	"paused" boolean DEFAULT false NOT NULL,
	CONSTRAINT "rate_windows_pkey" PRIMARY KEY("limit_name","partition_key")
);
--> statement-breakpoint
CREATE TABLE "sluice"."ready_jobs" (
	"lane_id" bigint NOT NULL,
	"rank" integer NOT NULL,
	"seq" bigint NOT NULL,
	"job_id" uuid NOT NULL,
	"cost" integer NOT NULL,
	"expires_at" timestamp with time zone,
	"eligible_at" timestamp with time zone NOT NULL,
	"epoch" integer DEFAULT 0 NOT NULL,
	"calls" integer DEFAULT 0 NOT NULL,
	"attempts_used" integer DEFAULT 0 NOT NULL,
	"throttles" integer DEFAULT 0 NOT NULL,
	"first_sent_at" timestamp with time zone,
	"outcome_unknown" boolean DEFAULT false NOT NULL,
	CONSTRAINT "ready_jobs_pkey" PRIMARY KEY("lane_id","rank","seq")
);
--> statement-breakpoint
CREATE TABLE "sluice"."running_jobs" (
	"job_id" uuid PRIMARY KEY NOT NULL,
	"lane_id" bigint NOT NULL,
	"group_id" integer NOT NULL,
	"rank" integer NOT NULL,
	"seq" bigint NOT NULL,
	"cost" integer NOT NULL,
	"expires_at" timestamp with time zone,
	"eligible_at" timestamp with time zone NOT NULL,
	"worker_id" uuid NOT NULL,
	"admitted_at" timestamp with time zone NOT NULL,
	"charged" text,
	"counted" boolean DEFAULT false NOT NULL,
	"epoch" integer DEFAULT 0 NOT NULL,
	"calls" integer DEFAULT 0 NOT NULL,
	"attempts_used" integer DEFAULT 0 NOT NULL,
	"throttles" integer DEFAULT 0 NOT NULL,
	"first_sent_at" timestamp with time zone,
	"outcome_unknown" boolean DEFAULT false NOT NULL
);
--> statement-breakpoint
CREATE TABLE "sluice"."stored_functions" (
	"name" text PRIMARY KEY NOT NULL,
	"sha256" text NOT NULL
);
--> statement-breakpoint
CREATE TABLE "sluice"."upstreams" (
	"name" text COLLATE "C" PRIMARY KEY NOT NULL,
	"definition" jsonb NOT NULL,
	"revision" integer DEFAULT 0 NOT NULL,
	"target_changed_at" timestamp with time zone,
	"updated_at" timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
--> statement-breakpoint
CREATE TABLE "sluice"."workers" (
	"id" uuid PRIMARY KEY NOT NULL,
	"host" text NOT NULL,
	"pid" integer NOT NULL,
	"concurrency" integer NOT NULL,
	"lease_expires_at" timestamp with time zone NOT NULL,
	"started_at" timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
--> statement-breakpoint
CREATE INDEX "attempts_started" ON "sluice"."attempts" USING brin ("started_at");--> statement-breakpoint
CREATE UNIQUE INDEX "batches_request_key" ON "sluice"."batches" USING btree ("tenant","request_key") WHERE "sluice"."batches"."request_key" is not null;--> statement-breakpoint
CREATE INDEX "done_jobs_ended" ON "sluice"."done_jobs" USING brin ("ended_at");--> statement-breakpoint
CREATE INDEX "jobs_batch" ON "sluice"."jobs" USING btree ("batch_id");--> statement-breakpoint
CREATE UNIQUE INDEX "lane_groups_queue_upstream_key" ON "sluice"."lane_groups" USING btree ("queue","upstream");--> statement-breakpoint
CREATE UNIQUE INDEX "lanes_group_partition_tenant" ON "sluice"."lanes" USING btree ("group_id","partition_key","tenant");--> statement-breakpoint
CREATE INDEX "lanes_turn" ON "sluice"."lanes" USING btree ("group_id","next_at");--> statement-breakpoint
CREATE INDEX "parked_jobs_due" ON "sluice"."parked_jobs" USING btree ("due_at") WHERE "sluice"."parked_jobs"."due_at" is not null;--> statement-breakpoint
CREATE INDEX "parked_jobs_lane" ON "sluice"."parked_jobs" USING btree ("lane_id","seq");--> statement-breakpoint
CREATE INDEX "parked_jobs_expiry" ON "sluice"."parked_jobs" USING btree ("expires_at") WHERE "sluice"."parked_jobs"."expires_at" is not null;--> statement-breakpoint
CREATE INDEX "ready_jobs_expiry" ON "sluice"."ready_jobs" USING btree ("expires_at") WHERE "sluice"."ready_jobs"."expires_at" is not null;--> statement-breakpoint
CREATE INDEX "running_jobs_counted" ON "sluice"."running_jobs" USING btree ("group_id","lane_id") WHERE "sluice"."running_jobs"."counted";