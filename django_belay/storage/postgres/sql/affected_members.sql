-- affected_members · contract §8.3; rule 33 · belay_x_jobs_held_deps_idx, belay_x_jobs_member_idx
-- The held members that the ends of the named ones may release or doom, and every dep of theirs: all
-- that settlement needs to know. What it reads does not grow with the workflow. One that waits
-- for an unfinished dep cannot move, unless an end that it does not ignore dooms it. Of rows
-- with one name in one workflow the newest speaks.
-- Whatever the statistics say, no plan may read the workflow: hence OFFSET 0, MATERIALIZED, the || and
-- the +, and conditions that no other index could serve. Parameters stand in SELECTs of their own,
-- as in claim.
WITH ended AS MATERIALIZED (
  SELECT n.workflow_id, n.name, n.state
    FROM unnest((SELECT %(workflow_ids)s::text[]), (SELECT %(names)s::text[]), (SELECT %(states)s::text[]))
           AS n(workflow_id, name, state)
), asked AS MATERIALIZED (
  SELECT ended.workflow_id, array_agg(ended.name) AS names,
         array_agg((hashtext(ended.name) # hashtext(ended.workflow_id)) & 1048575)
           || (hashtext(ended.workflow_id) & 1048575) AS keys
    FROM ended GROUP BY ended.workflow_id
), dependent AS MATERIALIZED (
  SELECT h.id, h.workflow_id, h.wf_name, h.state, h.wf_deps, h.wf_ignore, h.parent_id
    FROM asked
   CROSS JOIN LATERAL (
         SELECT f.id, f.workflow_id, f.wf_name, f.state, f.wf_deps, f.wf_ignore, f.parent_id
           FROM belay_jobs AS f
          WHERE f.state || '' = 'held' AND cardinality(f.wf_deps) > 0
            AND {dep_keys} && asked.keys
         OFFSET 0) AS h
   WHERE h.workflow_id = asked.workflow_id AND h.id <> ALL((SELECT %(ids)s::bigint[])::bigint[])
     AND (cardinality(h.wf_deps) > 16 OR h.wf_deps && asked.names)
), affected AS MATERIALIZED (
  SELECT h.id, h.workflow_id, h.wf_name, h.state, h.wf_deps, h.wf_ignore, h.parent_id
    FROM dependent AS h
   WHERE NOT EXISTS (
           -- The last one first: jobs end about in the order of their ids.
           SELECT 1
             FROM (SELECT h.wf_deps[cardinality(h.wf_deps)] AS dep
                    UNION ALL
                   (SELECT u.dep FROM unnest(h.wf_deps) WITH ORDINALITY AS u(dep, n) ORDER BY u.n DESC)
                  ) AS named
            CROSS JOIN LATERAL (
                  SELECT d.id, d.state FROM belay_jobs AS d
                   WHERE hashtext(d.wf_name) # hashtext(COALESCE(d.workflow_id, ''))
                           = hashtext(named.dep) # hashtext(h.workflow_id)
                     AND d.wf_name = named.dep AND d.workflow_id IS NOT DISTINCT FROM h.workflow_id
                   ORDER BY d.id + 0 DESC LIMIT 1) AS newest
            WHERE newest.state IN ('ready', 'running', 'awaiting', 'held', 'paused')
              AND newest.id <> ALL((SELECT %(ids)s::bigint[])::bigint[]))
      OR EXISTS (
           SELECT 1 FROM ended AS e
            WHERE e.workflow_id = h.workflow_id AND e.state <> 'succeeded'
              AND e.state <> ALL(h.wf_ignore) AND e.name = ANY(h.wf_deps))
)
SELECT a.workflow_id, a.id, a.wf_name, a.state, a.wf_deps, a.wf_ignore, a.parent_id
  FROM affected AS a
 UNION ALL
SELECT d.workflow_id, d.id, d.wf_name, d.state, '{}', '{}', d.parent_id
  FROM (SELECT DISTINCT a.workflow_id, u.dep FROM affected AS a, unnest(a.wf_deps) AS u(dep)) AS needed
 CROSS JOIN LATERAL (
       SELECT m.workflow_id, m.id, m.wf_name, m.state, m.parent_id
         FROM belay_jobs AS m
        WHERE hashtext(m.wf_name) # hashtext(COALESCE(m.workflow_id, ''))
                = hashtext(needed.dep) # hashtext(needed.workflow_id)
          AND m.wf_name = needed.dep AND m.workflow_id IS NOT DISTINCT FROM needed.workflow_id
       OFFSET 0) AS d
