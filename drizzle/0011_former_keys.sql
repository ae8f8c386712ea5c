CREATE TABLE "sluice"."former_keys" (
	"tenant" text COLLATE "C" NOT NULL,
	"key" text COLLATE "C" NOT NULL,
	"job_id" uuid NOT NULL,
	CONSTRAINT "former_keys_pkey" PRIMARY KEY("tenant","key","job_id")
);
--> statement-breakpoint
-- Of jobs whose key has expired, or belongs to a later job by now.
INSERT INTO "sluice"."former_keys" ("tenant", "key", "job_id")
SELECT j."tenant", j."idempotency_key", j."id" FROM "sluice"."jobs" j
 WHERE NOT EXISTS (SELECT 1 FROM "sluice"."idempotency_keys" k
                    WHERE k."tenant" = j."tenant" AND k."key" = j."idempotency_key" AND k."job_id" = j."id");--> statement-breakpoint
DROP INDEX "sluice"."jobs_key";