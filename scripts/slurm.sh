#!/usr/bin/env bash
# Runs deploy/slurm/submit.sh on a Slurm cluster of one node, this machine, in a temporary directory,
# with a part that ends half-way: requeued, killed and requeued, killed and left to the same command given again.
# The outputs have the bytes of one run. Needs Go, Slurm (Debian: slurmctld slurmd slurm-client), strace, and root.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in slurmctld slurmd sbatch strace; do
  command -v $tool > /dev/null || { echo "slurm.sh: $tool is missing; install slurmctld slurmd slurm-client strace" >&2; exit 2; }
done
repository=$PWD
work=$(mktemp -d)
export SLURM_CONF=$work/slurm.conf
daemons=()
cleanup() { # what the daemons started, and jobs in it, has their variable
  local ids
  kill "${daemons[@]}" 2> /dev/null || true
  wait
  while ids=$(env -u SLURM_CONF grep -lsz "^SLURM_CONF=$SLURM_CONF\$" /proc/[0-9]*/environ | cut -d/ -f3); [ -n "$ids" ]; do
    echo "$ids" | xargs kill -9 2> /dev/null || true
  done
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() { echo "FAILED: $*" >&2; squeue >&2 || true; tail -n 20 "$work"/*.log "$work"/*.out >&2 || true; exit 1; }

await() { # WHAT COMMAND…: waits until the command succeeds
  local what=$1
  shift
  for _ in $(seq 600); do
    if "$@"; then return; fi
    sleep 0.1
  done
  echo "waited a minute for: $what" >&2
  return 1
}

free_port() { # AFTER
  local port=$(($1 + 1 + RANDOM % 1000))
  while (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do port=$((port + 1)); done
  echo $port
}

no_job() { [ -z "$(squeue -h)" ]; }
state() { scontrol show job -o "$1" | sed 's/.* JobState=\([A-Z]*\).*/\1/'; }
in_state() { [ "$(state "$1")" = "$2" ]; } # JOB STATE
answers() { sinfo -h -o %T 2> /dev/null | grep -qx idle; }
stopped() { grep -qs 'stopped by SIGSTOP' trace; }

# The seconds that a requeued job waits, that a killed job has after SIGTERM, and between looks at the queue are few.
cat > "$SLURM_CONF" << CONF
ClusterName=dsmoe
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$(free_port 20000)
SlurmdPort=$(free_port 22000)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
KillWait=2
SchedulerParameters=sched_interval=1
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
NodeName=localhost NodeAddr=127.0.0.1 CPUs=16 RealMemory=65536
PartitionName=all Nodes=ALL Default=YES
CONF
mkdir "$work/state" "$work/spool"
go build -o "$work/dsmoe" ./cmd/dsmoe
slurmctld -D > "$work/slurmctld.log" 2>&1 &
daemons+=($!)
slurmd -D > "$work/slurmd.log" 2>&1 &
daemons+=($!)
await 'an idle node' answers || fail 'Slurm does not start'

# Part 2 stops for ever at its first write, once per file stop; part 3 waits until there is no file hold.
cat > "$work/slow dsmoe" << 'SCRIPT'
#!/usr/bin/env bash
here=$(dirname "$0")
case ${SLURM_ARRAY_TASK_ID:-} in
  2)
    if rm stop 2> /dev/null; then
      exec strace -D -f -o trace -e trace=pwrite64 -e inject=pwrite64:signal=STOP:when=1 "$here/dsmoe" "$@"
    fi
    ;;
  3) while [ -e hold ]; do sleep 0.1; done ;;
esac
exec "$here/dsmoe" "$@"
SCRIPT
chmod +x "$work/slow dsmoe"
export DSMOE="$work/slow dsmoe"

cd "$work"
cp -r "$repository/fixtures/v3-fp8/checkpoint" 'a model'
flags=(--to gguf --type bf16 --no-vocab --name 'A model of  two spaces')
mkdir one requeued killed again
./dsmoe convert 'a model' one/model.gguf "${flags[@]}" > /dev/null
options=(--cpus-per-task=2 --mem=1G --time=5)

submit() { # DIRECTORY: submits five parts and sets parts and finish
  "$repository/deploy/slurm/submit.sh" "${options[@]}" 5%4 'a model' "$1/model.gguf" "${flags[@]}" > ids
  parts=$(awk '$1 == "parts" {print $2}' ids)
  finish=$(awk '$1 == "finish" {print $2}' ids)
}

at_a_write() { # DIRECTORY: submits; part 2 stops half-way
  touch stop
  submit "$1"
  await 'part 2 at a write' stopped || fail 'part 2 does not stop'
  rm trace
}

kill_part_2() { # STATE FLAG…: kills part 2 by scancel, which leaves it in a state
  local want=$1
  shift
  scancel "$@" --signal=KILL "${parts}_2"
  await 'the end of part 2' in_state "${parts}_2" "$want" || fail "part 2 is $(state "${parts}_2") after scancel $*"
}

check() { # DIRECTORY WHAT: the directory is as one run leaves it
  await 'all jobs' no_job || fail 'jobs do not end'
  in_state "$finish" COMPLETED || fail "$2: the finish job is $(state "$finish")"
  diff -r one "$1" || fail "$2: other bytes"
  echo "slurm: $2: the bytes of one run"
}

status=0
"$repository/deploy/slurm/submit.sh" 5 'a model' wrong.gguf --to gguf --type nonsense > /dev/null 2>&1 || status=$?
[ $status = 2 ] || fail "a wrong flag: exit status $status"
no_job || fail 'a wrong flag: a job was submitted'

touch hold
at_a_write requeued
scontrol requeue "${parts}_2"
rm hold
check requeued 'a running part requeued'

# The array keeps the exit status of a killed task: afterok is never satisfied, afterany waits for the requeued task.
touch hold
at_a_write killed
kill_part_2 CANCELLED
scontrol requeue "${parts}_2"
scontrol update JobId="$finish" Dependency="afterany:$parts"
rm hold
check killed 'a part killed and requeued, and the dependency renewed'

at_a_write again
kill_part_2 FAILED --batch
await 'all jobs' no_job || fail 'jobs do not end'
in_state "$finish" CANCELLED || fail "after a failed part the finish job is $(state "$finish")"
[ ! -e again/model.gguf ] || fail 'an output of four parts of five'
submit again
check again 'a part killed, and the same command again'
