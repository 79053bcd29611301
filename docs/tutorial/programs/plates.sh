#!/bin/sh
#RMS --job-name=plates
#RMS --array=1-4
#RMS --nodes=1
#RMS --time=5
mpirun python heat.py $((20000 + RMS_ARRAY_TASK_ID))
