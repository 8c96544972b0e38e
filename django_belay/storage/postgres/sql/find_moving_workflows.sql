-- find_moving_workflows · contract §8.3; rule 33 · belay_jobs_workflow_idx
-- Which of these workflows may have a held member to release or doom, now that the named
-- members ended. Few deps: does one of them end here? Many: comparing them costs more
-- than asking whether one is unfinished, which a big batch is until its end; an end that
-- the held member does not ignore may doom it before that.
SELECT DISTINCT e.workflow_id
  FROM (SELECT n.workflow_id, array_agg(n.name) AS names, array_agg(n.id) AS ids,
               COALESCE(array_agg(n.state) FILTER (WHERE n.state <> 'succeeded'), '{}') AS unsuccessful
          FROM unnest(%(workflow_ids)s::text[], %(names)s::text[], %(states)s::text[],
                      %(ids)s::bigint[]) AS n(workflow_id, name, state, id)
         GROUP BY n.workflow_id) AS e
 WHERE EXISTS (
   SELECT 1 FROM belay_jobs AS h
    WHERE h.workflow_id = e.workflow_id AND h.state = 'held' AND cardinality(h.wf_deps) > 0
      AND CASE
            WHEN cardinality(h.wf_deps) <= 64 THEN h.wf_deps && e.names
            WHEN NOT e.unsuccessful <@ h.wf_ignore THEN true
            ELSE NOT EXISTS (
              SELECT 1 FROM belay_jobs AS d
               WHERE d.workflow_id = e.workflow_id
                 AND d.state IN ('ready', 'running', 'awaiting', 'held', 'paused')
                 AND d.id <> ALL(e.ids) AND d.wf_name = ANY(h.wf_deps))
          END)
