DROP INDEX "sluice"."blown_fuses_moving";--> statement-breakpoint
CREATE INDEX "blown_fuses_open" ON "sluice"."blown_fuses" USING btree ("state") WHERE "sluice"."blown_fuses"."state" <> 'resumed';