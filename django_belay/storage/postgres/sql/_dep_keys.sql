-- What belay_x_jobs_held_deps_idx files a held member under; word for word the same.
CASE WHEN cardinality(f.wf_deps) > 16 OR f.wf_deps[1] IS NULL
     THEN ARRAY[hashtext(f.workflow_id) & 1048575]
     ELSE array_remove(ARRAY[
         (hashtext(f.wf_deps[1]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[2]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[3]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[4]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[5]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[6]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[7]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[8]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[9]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[10]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[11]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[12]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[13]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[14]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[15]) # hashtext(f.workflow_id)) & 1048575,
         (hashtext(f.wf_deps[16]) # hashtext(f.workflow_id)) & 1048575
       ], NULL)
END
