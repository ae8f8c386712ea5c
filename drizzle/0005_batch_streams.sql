CREATE TABLE "sluice"."batch_streams" (
	"batch_id" uuid PRIMARY KEY NOT NULL,
	"holder" uuid NOT NULL,
	"held_until" timestamp with time zone NOT NULL
);
--> statement-breakpoint
ALTER TABLE "sluice"."batch_items" ADD COLUMN "line" "bytea";