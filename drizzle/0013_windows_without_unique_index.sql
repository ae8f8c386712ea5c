-- A row that changes many times a second has a new entry in this index with each new page of its versions. A unique index steps
-- over all of them to let one in, also over those that cannot go because a transaction is left open somewhere; this one does not.
ALTER TABLE "sluice"."rate_windows" DROP CONSTRAINT "rate_windows_pkey";--> statement-breakpoint
CREATE INDEX "rate_windows_name" ON "sluice"."rate_windows" USING btree ("limit_name","partition_key");--> statement-breakpoint
-- For who publishes all tables by logical replication: without a key an update would be refused.
ALTER TABLE "sluice"."rate_windows" REPLICA IDENTITY FULL;--> statement-breakpoint
-- In force at once, so that no claim makes a second row before the stored functions are installed: as of this migration.
DO $migration$ BEGIN
  IF to_regprocedure('sluice.lock_window(sluice.rate_limits,text,tid)') IS NOT NULL THEN
    EXECUTE $function$
create or replace function sluice.lock_window(r sluice.rate_limits, p_partition text, p_at tid default null)
returns sluice.rate_windows language plpgsql as $body$
declare
  w sluice.rate_windows;
  v_at tid;
begin
  if p_at is not null then
    -- Follows the row from version to version.
    v_at := currtid2('sluice.rate_windows', p_at);
    select * into w from sluice.rate_windows x where x.ctid = v_at and x.limit_name = r.name and x.partition_key = p_partition
       for no key update skip locked;
    if found then return w; end if;
    perform 1 from sluice.rate_windows x where x.ctid = v_at and x.limit_name = r.name and x.partition_key = p_partition;
    if found then return null; end if;
  end if;
  select * into w from sluice.rate_windows x where x.limit_name = r.name and x.partition_key = p_partition
     for no key update skip locked;
  if found then return w; end if;
  if exists (select 1 from sluice.rate_windows x where x.limit_name = r.name and x.partition_key = p_partition) then return null; end if;
  -- No index keeps a second row out. Whoever makes one holds this until it is committed; the look comes after, and sees it.
  if not pg_try_advisory_xact_lock(7305006, hashtext(r.name || chr(10) || p_partition)) then return null; end if;
  if exists (select 1 from sluice.rate_windows x where x.limit_name = r.name and x.partition_key = p_partition) then return null; end if;
  insert into sluice.rate_windows select (sluice.rate_window_empty(r, p_partition, sluice.clock_us())).*;
  select * into w from sluice.rate_windows x where x.limit_name = r.name and x.partition_key = p_partition
     for no key update skip locked;
  if found then return w; end if;
  return null;
end $body$;
$function$;
  END IF;
END $migration$;
