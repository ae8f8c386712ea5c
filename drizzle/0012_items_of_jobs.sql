-- An accepted item of a JSON batch is told from its job: no row of its own, and no entry in an index for it.
ALTER TABLE "sluice"."batch_items" RENAME TO "stored_items";--> statement-breakpoint
ALTER TABLE "sluice"."jobs" ADD COLUMN "item_index" integer DEFAULT -1 NOT NULL;--> statement-breakpoint
DROP INDEX "sluice"."jobs_batch";--> statement-breakpoint
CREATE INDEX "jobs_batch" ON "sluice"."jobs" USING btree ("batch_id","item_index","id");--> statement-breakpoint
-- All items, where `index` is asked for from 0 on. No condition here: with one, PostgreSQL could not look through the view
-- for a batch that it learns of by a join, nor read both parts in the order of their indexes. `writer` is the transaction
-- that wrote the row.
CREATE VIEW "sluice"."batch_items" AS
SELECT "batch_id", "index", "idempotency_key", "key_source", "verdict", "job_id", "job_state", "errors", "line", xmin AS "writer"
  FROM "sluice"."stored_items"
UNION ALL
SELECT "batch_id", "item_index", "idempotency_key", "key_source", 'accepted', "id",
       CASE WHEN "run_at" > "created_at" THEN 'scheduled' ELSE 'ready' END, NULL, NULL, xmin
  FROM "sluice"."jobs";--> statement-breakpoint
-- For replicas of the version before, which still run and write to what was the table.
CREATE RULE "batch_items_insert" AS ON INSERT TO "sluice"."batch_items" DO INSTEAD
  INSERT INTO "sluice"."stored_items" ("batch_id", "index", "idempotency_key", "key_source", "verdict", "job_id", "job_state", "errors", "line")
  VALUES (NEW."batch_id", NEW."index", NEW."idempotency_key", NEW."key_source", NEW."verdict", NEW."job_id", NEW."job_state", NEW."errors", NEW."line");--> statement-breakpoint
CREATE RULE "batch_items_delete" AS ON DELETE TO "sluice"."batch_items" DO INSTEAD
  DELETE FROM "sluice"."stored_items" s WHERE s."batch_id" = OLD."batch_id" AND s."index" = OLD."index";
