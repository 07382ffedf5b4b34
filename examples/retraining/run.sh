#!/bin/sh
# Two minutes on a local cluster: a first champion, a challenger that is no better, and, once the data has
# drifted, one that is.
set -e
cd "$(dirname "$0")"
python data.py first
det retrain create plan.yaml .
det retrain run digits-drift           # there is no champion yet: promoted
det retrain run digits-drift           # the same data: skipped
det retrain run digits-drift --force   # trained anyway: no better, so the champion stays
python data.py next                    # the data drifts
det retrain run digits-drift           # the champion does not know such images: promoted
det retrain history digits-drift
det model alias history digits-drift champion
det retrain rollback digits-drift      # and back, by one command
