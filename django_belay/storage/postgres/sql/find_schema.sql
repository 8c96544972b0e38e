-- find_schema · contract §1
SELECT to_regclass('belay_meta') IS NOT NULL,
       to_regclass('belay_x_queue_pauses') IS NOT NULL AND to_regclass('belay_x_jobs_ready_idx') IS NOT NULL
         AND to_regclass('belay_x_jobs_held_deps_idx') IS NOT NULL AND to_regclass('belay_x_jobs_member_idx') IS NOT NULL,
       current_database()::text
