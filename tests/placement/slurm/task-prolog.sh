#!/bin/bash
# SkyPilot looks for uv under a home of its own for each of its clusters, and would download it.
name=$(squeue -h -j "$SLURM_JOB_ID" -o %j 2>/dev/null)
folder=@ROOT@/home/.sky_clusters/$name/.local/bin
[[ -z $name || -e $folder/uv ]] || { mkdir -p "$folder" && ln -sf @ROOT@/uv "$folder/uv"; }
