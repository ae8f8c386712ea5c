-- A row that changes many times a second has a new entry in this index with each new page of its versions. A unique index steps
-- over all of them to let one in, also over those that cannot go because a transaction is left open somewhere; this one does not.
ALTER TABLE "sluice"."rate_windows" DROP CONSTRAINT "rate_windows_pkey";--> statement-breakpoint
CREATE INDEX "rate_windows_name" ON "sluice"."rate_windows" USING btree ("limit_name","partition_key");