-- Storage parameters, which drizzle cannot express, and the rows that must always be there.
--
-- Tables of jobs on the move live by insert and delete: dead rows appear as fast as work is done, so vacuum starts after a
-- thousand and two in a hundred instead of one in five, and works without long pauses. Truncating the empty end of a table
-- would take an ACCESS EXCLUSIVE lock in the way of every claim, and the space is needed again at once: switched off.
ALTER TABLE "sluice"."ready_jobs" SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = false);--> statement-breakpoint
ALTER TABLE "sluice"."running_jobs" SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = false);--> statement-breakpoint
ALTER TABLE "sluice"."parked_jobs" SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = false);--> statement-breakpoint
-- Lanes change in place, but next_at is in an index, so an update is never HOT: free space on the page keeps the new version
-- beside the old one, and vacuum must come often, or the index of the turn fills with dead entries that each claim steps over.
ALTER TABLE "sluice"."lanes" SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = false);--> statement-breakpoint
-- Few rows, each updated many times a second, no index on what changes: half-empty pages make every update HOT, so that the
-- page is pruned by the next reader. Vacuum starts after a fixed number of dead rows: a share of so few rows means nothing.
ALTER TABLE "sluice"."lane_groups" SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, vacuum_truncate = false);--> statement-breakpoint
ALTER TABLE "sluice"."rate_windows" SET (fillfactor = 30, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_limit = 2000, vacuum_truncate = false);--> statement-breakpoint
ALTER TABLE "sluice"."cooldowns" SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200, vacuum_truncate = false);--> statement-breakpoint
ALTER TABLE "sluice"."workers" SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, vacuum_truncate = false);--> statement-breakpoint
ALTER TABLE "sluice"."definition_version" SET (fillfactor = 50);--> statement-breakpoint
INSERT INTO "sluice"."definition_version" ("only_row", "version") VALUES (true, 1);--> statement-breakpoint
-- Jobs that name no queue go to this one. Revision -1: any config file, also one without a revision, may overwrite it.
INSERT INTO "sluice"."queues" ("name", "definition", "revision") VALUES ('default', '{"paused":false,"ordering":"none"}', -1);
