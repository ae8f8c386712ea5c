CREATE TABLE "sluice"."claims_ahead" (
	"id" uuid PRIMARY KEY NOT NULL,
	"worker_id" uuid NOT NULL
);
--> statement-breakpoint
ALTER TABLE "sluice"."running_jobs" ADD COLUMN "claim_ahead" uuid;--> statement-breakpoint
-- A row for milliseconds with each claim that runs ahead, as in the tables of jobs on the move.
ALTER TABLE "sluice"."claims_ahead" SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = false);
