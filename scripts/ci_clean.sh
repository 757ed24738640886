#!/usr/bin/env bash
# Removes what killed tests and runs of this project left on this machine: scripts/ci_clean.sh, as root. Prints what it
# removed. Ends within 10 seconds and always with 0: what it cannot remove, it names. What belongs to a living process
# stays: a control group with a process that a living parent outside of it started, a namespace with processes.
set -u
readonly deadline_s=10
if [ "${1:-}" != --within-deadline ]; then
    timeout --kill-after=1 "$deadline_s" "${BASH_SOURCE[0]}" --within-deadline || echo "clean: not finished within $deadline_s s"
    exit 0
fi
shopt -s nullglob

say() { printf 'clean: %s\n' "$*"; }

# is_left_over NAME: a number in it that stands alone or follows letters only is the id of the process that made it
is_left_over() {
    local pid
    pid=$(tr -- - '\n' <<<"$1" | sed -nE 's/^[a-z]*([0-9]{2,})$/\1/p' | head -n 1)
    [ -z "$pid" ] || ! [ -d "/proc/$pid" ]
}

# processes_of DIRECTORY: of a control group and those below it
processes_of() { find "$1" -name cgroup.procs -exec cat {} + 2>/dev/null; }

# Processes that only init could still wait for: their parents have ended, or are among them. 0 is one of another PID namespace.
are_orphans() {
    local pid parent
    for pid in "$@"; do
        [ "$pid" -ne 0 ] || return 1
        parent=$(awk '$1 == "PPid:" { print $2 }' "/proc/$pid/status" 2>/dev/null) || continue
        case " 1 $* " in *" ${parent:-1} "*) ;; *) return 1 ;; esac
    done
}

# mounts_of_groups: where the hierarchies of control groups are mounted, a line each
mounts_of_groups() { awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/mounts | sort -u; }

# remove_group DIRECTORY...: one group in each hierarchy. Thawed in all first, since what is frozen in one does not die;
# then killed, and removed with all below it, deepest first
remove_group() {
    local directory file
    while read -r file; do
        case $file in
            */freezer.state) echo THAWED >"$file" ;;
            */cgroup.freeze) echo 0 >"$file" ;;
        esac
    done < <(find "$@" -name freezer.state -o -name cgroup.freeze) 2>/dev/null
    for directory in "$@"; do processes_of "$directory"; done | sort -nu | xargs --no-run-if-empty kill -KILL 2>/dev/null
    for directory in "$@"; do
        for _ in {1..20}; do
            find "$directory" -depth -type d -exec rmdir {} + 2>/dev/null
            [ -d "$directory" ] || break
            sleep 0.1 # a killed process leaves its group a little later
        done
        if [ -d "$directory" ]; then say "control group $directory stays"; else say "removed control group $directory"; fi
    done
}

# Tests' groups, by the names that tests give, go with what orphans run in them. An installation's services may have init
# for their parent, too: its default roots go once nothing runs in them in any hierarchy, and no other root is touched.
readonly tests_groups='^(tb-(test|system|fast-path|writers)-|turnbuckle-(probe|test|runner-test|pacing-test|mltcp|runtimes|bench-memory)-[0-9]+$)'
clean_groups() {
    local mount name directory mounts names directories processes
    mapfile -t mounts < <(mounts_of_groups)
    mapfile -t names < <(for mount in "${mounts[@]}"; do for directory in "$mount"/{tb,turnbuckle}-* "$mount"/turnbuckle; do
        [ -d "$directory" ] && echo "${directory##*/}"
    done; done | sort -u)
    for name in "${names[@]}"; do
        is_left_over "$name" || continue
        directories=()
        for mount in "${mounts[@]}"; do if [ -d "$mount/$name" ]; then directories+=("$mount/$name"); fi; done
        mapfile -t processes < <(for directory in "${directories[@]}"; do processes_of "$directory"; done | sort -nu)
        if [[ $name =~ $tests_groups ]]; then
            are_orphans "${processes[@]}" || continue
        elif [ ${#processes[@]} -ne 0 ] || [[ $name != turnbuckle && $name != turnbuckle-cells ]]; then
            continue
        fi
        remove_group "${directories[@]}"
    done
}

# shellcheck disable=SC2013 # names of namespaces and devices have no spaces
# Namespaces by the names that tests give (a lab is its user's: turnbuckle lab down). Those of one test share what stands
# before the first "-": as long as processes run in one of them, all stay.
clean_network() {
    command -v ip >/dev/null || return
    local name family names
    names=$(ip netns list 2>/dev/null | awk '{ print $1 }' | grep -E '^(tb[0-9]+|tbfp[0-9]+|tb(svc|prom)[0-9a-f]{6})(-|$)')
    for family in $(cut -d- -f1 <<<"$names" | sort -u); do
        is_left_over "$family" || continue
        for name in $(grep -xE "$family(-.*)?" <<<"$names"); do
            [ -z "$(ip netns pids "$name" 2>/dev/null)" ] || continue 2
        done
        for name in $(grep -xE "$family(-.*)?" <<<"$names"); do
            ip netns delete "$name" && say "removed namespace $name"
        done
    done
    for name in $(ip -brief link show type veth 2>/dev/null | awk '{ sub(/@.*/, "", $1); print $1 }' | grep -E '^tb[0-9]'); do
        # its peer goes with it
        is_left_over "$(grep -oE '^[a-z]+[0-9]+' <<<"$name")" && ip link delete "$name" 2>/dev/null && say "removed device $name"
    done
}

# value_of KEY FILE: of a JSON file of one line, a number or a text
value_of() { sed -nE "s/.*\"$1\": *\"?([^\",}]*).*/\\1/p" "$2"; }

# Records of sandboxes (services/_jobs/sandbox/records.py: RunRecord) whose owner has ended, once their control groups are
# gone: those are found by them. Then the state of tests that have ended.
clean_run() {
    local file mount
    for file in /run/turnbuckle/cells/*.json; do
        [ "$(value_of pid_namespace "$file")" = "$(readlink /proc/self/ns/pid)" ] || continue
        ! [ -d "/proc/$(value_of pid "$file")" ] || continue
        while read -r mount; do
            ! [ -d "$mount/$(value_of root "$file")/$(value_of token "$file")" ] || continue 2
        done < <(mounts_of_groups)
        rm -f "$file" && say "removed $file"
    done
    for file in /run/turnbuckle-tbtest[0-9]*; do # state directories of Compose stacks
        is_left_over "${file##*turnbuckle-}" && rm -rf "$file" && say "removed $file"
    done
}

if [ "$(id -u)" -ne 0 ]; then
    say "needs root, nothing was looked at"
    exit 0
fi
clean_groups
clean_network
clean_run
if command -v dpkg >/dev/null && [ -n "$(dpkg --audit 2>/dev/null)" ]; then
    say "dpkg --configure -a (a package was left half-installed)"
    DEBIAN_FRONTEND=noninteractive dpkg --configure -a >/dev/null 2>&1 || say "dpkg --configure -a failed"
fi
exit 0
