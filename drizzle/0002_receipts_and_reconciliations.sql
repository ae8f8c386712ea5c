CREATE TABLE "sluice"."receipts" (
	"job_id" uuid PRIMARY KEY NOT NULL,
	"tenant" text COLLATE "C" NOT NULL,
	"idempotency_key" text COLLATE "C" NOT NULL,
	"state" text NOT NULL,
	"reason" text,
	"evidence" text,
	"attempts" integer NOT NULL,
	"status" smallint,
	"excerpt" text,
	"truncated" boolean DEFAULT false NOT NULL,
	"sha256" "bytea",
	"note" text,
	"first_sent_at" timestamp with time zone,
	"ended_at" timestamp with time zone NOT NULL
);
--> statement-breakpoint
CREATE TABLE "sluice"."reconciliations" (
	"job_id" uuid NOT NULL,
	"epoch" integer NOT NULL,
	"started_at" timestamp with time zone NOT NULL,
	"sent_at" timestamp with time zone,
	"at" timestamp with time zone NOT NULL,
	"status" smallint,
	"verdict" text NOT NULL,
	"error" text,
	CONSTRAINT "reconciliations_pkey" PRIMARY KEY("job_id","epoch")
);
--> statement-breakpoint
ALTER TABLE "sluice"."parked_jobs" ADD COLUMN "reconcile_failures" integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE "sluice"."ready_jobs" ADD COLUMN "reconcile_failures" integer DEFAULT 0 NOT NULL;--> statement-breakpoint
ALTER TABLE "sluice"."running_jobs" ADD COLUMN "reconcile_failures" integer DEFAULT 0 NOT NULL;--> statement-breakpoint
CREATE INDEX "receipts_ended" ON "sluice"."receipts" USING brin ("ended_at");