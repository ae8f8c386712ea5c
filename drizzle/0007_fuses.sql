CREATE TABLE "sluice"."blown_fuses" (
	"batch_id" uuid PRIMARY KEY NOT NULL,
	"state" text NOT NULL,
	"job_id" uuid NOT NULL,
	"status" smallint NOT NULL,
	"at" timestamp with time zone NOT NULL,
	"resumed_at" timestamp with time zone
);
--> statement-breakpoint
ALTER TABLE "sluice"."parked_jobs" ADD COLUMN "resume_at" timestamp with time zone;--> statement-breakpoint
CREATE INDEX "blown_fuses_moving" ON "sluice"."blown_fuses" USING btree ("state") WHERE "sluice"."blown_fuses"."state" in ('holding', 'resuming');