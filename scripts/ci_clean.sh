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

# Processes that only init could still wait for: their parents have ended, or are among them.
are_orphans() {
    local pid parent
    for pid in "$@"; do
        parent=$(awk '$1 == "PPid:" { print $2 }' "/proc/$pid/status" 2>/dev/null) || continue
        case " 1 $* " in *" ${parent:-1} "*) ;; *) return 1 ;; esac
    done
}

# remove_group DIRECTORY: thaws, kills and removes it with all below it, deepest first
remove_group() {
    local directory=$1 file
    while read -r file; do
        case $file in
            */freezer.state) echo THAWED >"$file" ;;
            */cgroup.freeze) echo 0 >"$file" ;;
        esac
    done < <(find "$directory" -name freezer.state -o -name cgroup.freeze) 2>/dev/null
    processes_of "$directory" | xargs --no-run-if-empty kill -KILL 2>/dev/null
    for _ in {1..20}; do
        find "$directory" -depth -type d -exec rmdir {} + 2>/dev/null
        [ -d "$directory" ] || break
        sleep 0.1 # a killed process leaves its group a little later
    done
    if [ -d "$directory" ]; then say "control group $directory stays"; else say "removed control group $directory"; fi
}

# Tests' groups go with what orphans run in them. Those of an installation (turnbuckle, turnbuckle-cells) go once nothing
# runs in them in any hierarchy; single ones below them are their agent's.
clean_groups() {
    local mount group name processes
    local -A mounts=()
    while read -r _ mount _; do mounts[$mount]=1; done < <(awk '$3 == "cgroup" || $3 == "cgroup2"' /proc/mounts)
    for mount in "${!mounts[@]}"; do
        for group in "$mount"/turnbuckle* "$mount"/tb-test-* "$mount"/tb-system-* "$mount"/tb-fast-path-* "$mount"/tb-writers-*; do
            name=${group##*/}
            if ! [ -d "$group" ] || ! is_left_over "$name"; then continue; fi
            mapfile -t processes < <(for other in "${!mounts[@]}"; do [ -d "$other/$name" ] && processes_of "$other/$name"; done | sort -nu)
            if [ ${#processes[@]} -ne 0 ]; then
                case $name in turnbuckle | turnbuckle-cells) continue ;; esac
                are_orphans "${processes[@]}" || continue
            fi
            remove_group "$group"
        done
    done
}

# shellcheck disable=SC2013 # names of namespaces and devices have no spaces
# Namespaces of one lab or test share what stands before the first "-": as long as processes run in one of them, all stay.
clean_network() {
    command -v ip >/dev/null || return
    local name family names
    names=$(ip netns list 2>/dev/null | awk '{ print $1 }' | grep -E '^(tb|turnbuckle)')
    for family in $(cut -d- -f1 <<<"$names" | sort -u); do
        is_left_over "$family" || continue
        for name in $(grep -xE "$family(-.*)?" <<<"$names"); do
            [ -z "$(ip netns pids "$name" 2>/dev/null)" ] || continue 2
        done
        for name in $(grep -xE "$family(-.*)?" <<<"$names"); do
            ip netns delete "$name" && say "removed namespace $name"
        done
        rm -rf "/run/turnbuckle-lab/$family"
    done
    for name in $(ip -brief link show type veth 2>/dev/null | awk '{ sub(/@.*/, "", $1); print $1 }' | grep -E '^(tb|turnbuckle)[0-9]'); do
        # its peer goes with it
        is_left_over "$(grep -oE '^[a-z]+[0-9]+' <<<"$name")" && ip link delete "$name" 2>/dev/null && say "removed device $name"
    done
}

# Records of sandboxes (services/_host/sandbox/records.py) and state of tests, whose process has ended
clean_run() {
    local file pid
    for file in /run/turnbuckle/cells/*.json; do
        pid=$(grep -oE '"pid": *[0-9]+' "$file" | grep -oE '[0-9]+')
        [ -n "$pid" ] && ! [ -d "/proc/$pid" ] && rm -f "$file" && say "removed $file"
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
