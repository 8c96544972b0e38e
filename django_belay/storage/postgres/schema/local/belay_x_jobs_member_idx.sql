-- From a name to the member of a workflow, whatever their length (§8.3, rule 33). The COALESCE keeps a
-- question from being one for belay_jobs_workflow_idx, too.
CREATE INDEX belay_x_jobs_member_idx
  ON belay_jobs ((hashtext(wf_name) # hashtext(COALESCE(workflow_id, '')))) WHERE wf_name IS NOT NULL
