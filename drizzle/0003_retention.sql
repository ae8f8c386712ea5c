CREATE TABLE "sluice"."retired_batches" (
	"batch_id" uuid PRIMARY KEY NOT NULL,
	"next_index" integer DEFAULT 0 NOT NULL,
	"due_at" timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
--> statement-breakpoint
DROP INDEX "sluice"."receipts_ended";--> statement-breakpoint
ALTER TABLE "sluice"."batches" ADD COLUMN "keys_gone" boolean DEFAULT false NOT NULL;--> statement-breakpoint
CREATE INDEX "batch_items_duplicates" ON "sluice"."batch_items" USING btree ("job_id") WHERE "sluice"."batch_items"."verdict" = 'duplicate';--> statement-breakpoint
CREATE INDEX "batches_age" ON "sluice"."batches" USING btree ("created_at","id");--> statement-breakpoint
CREATE INDEX "batches_keys_left" ON "sluice"."batches" USING btree ("created_at","id") WHERE not "sluice"."batches"."keys_gone";--> statement-breakpoint
CREATE INDEX "receipts_ended" ON "sluice"."receipts" USING btree ("ended_at");