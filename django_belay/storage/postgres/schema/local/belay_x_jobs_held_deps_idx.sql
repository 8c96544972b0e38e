-- From a member to those that wait for it (§8.3, rule 33), however many are held: a key for each of
-- up to 16 deps, of workflow and name; a member with more is filed under its workflow alone. The keys
-- are few, since this kind of index never forgets one. The || keeps it to itself: no other index
-- of held rows serves that question.
CREATE INDEX belay_x_jobs_held_deps_idx
  ON belay_jobs USING gin ((
    CASE WHEN cardinality(wf_deps) > 16 OR wf_deps[1] IS NULL
         THEN ARRAY[hashtext(workflow_id) & 1048575]
         ELSE array_remove(ARRAY[
             (hashtext(wf_deps[1]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[2]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[3]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[4]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[5]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[6]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[7]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[8]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[9]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[10]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[11]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[12]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[13]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[14]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[15]) # hashtext(workflow_id)) & 1048575,
             (hashtext(wf_deps[16]) # hashtext(workflow_id)) & 1048575
           ], NULL)
    END
  )) WITH (fastupdate = off)
  WHERE state || '' = 'held' AND cardinality(wf_deps) > 0
