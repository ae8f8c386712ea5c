CREATE TABLE "sluice"."api_keys" (
	"id" uuid PRIMARY KEY NOT NULL,
	"tenant" text COLLATE "C" NOT NULL,
	"name" text NOT NULL,
	"scopes" text[] NOT NULL,
	"hash" "bytea" NOT NULL,
	"created_at" timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
