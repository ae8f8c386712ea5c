DROP INDEX "sluice"."jobs_batch";--> statement-breakpoint
ALTER TABLE "sluice"."jobs" ADD COLUMN "retried_at" timestamp with time zone;--> statement-breakpoint
ALTER TABLE "sluice"."jobs" ADD COLUMN "key_age_from" timestamp with time zone;--> statement-breakpoint
ALTER TABLE "sluice"."jobs" ADD COLUMN "fresh_keys" integer DEFAULT 0 NOT NULL;--> statement-breakpoint
CREATE INDEX "batches_newest" ON "sluice"."batches" USING btree ("tenant","id");--> statement-breakpoint
CREATE INDEX "batches_cancelled" ON "sluice"."batches" USING btree ("cancelled_at") WHERE "sluice"."batches"."cancelled_at" is not null;--> statement-breakpoint
CREATE INDEX "done_jobs_unsuccessful" ON "sluice"."done_jobs" USING btree ("state","job_id") WHERE "sluice"."done_jobs"."state" <> 'succeeded';--> statement-breakpoint
CREATE INDEX "jobs_newest" ON "sluice"."jobs" USING btree ("tenant","queue","upstream","id");--> statement-breakpoint
CREATE INDEX "jobs_correlation" ON "sluice"."jobs" USING btree ("correlation_id","id") WHERE "sluice"."jobs"."correlation_id" is not null;--> statement-breakpoint
CREATE INDEX "jobs_key" ON "sluice"."jobs" USING btree ("idempotency_key");--> statement-breakpoint
CREATE INDEX "parked_jobs_held" ON "sluice"."parked_jobs" USING btree ("job_id") WHERE "sluice"."parked_jobs"."state" = 'held';--> statement-breakpoint
CREATE INDEX "jobs_batch" ON "sluice"."jobs" USING btree ("batch_id","id");