#!/bin/sh
# The guest's first process once its root is there: takes jobs until the host hangs up, then switches off.
# A job is a directory below /run/exchange that holds a script `job`; a virtio-serial port carries its name in, and back
# when it has ended and `output` and `exit-code` lie beside it. Jobs run side by side.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8

serve() {
    # A glob: the port's number depends on the devices. A terminal (of User-Mode Linux) would echo, and wait for lines.
    channel=$(echo $1)
    exec 3<>"$channel"
    [ ! -t 3 ] || stty raw -echo <&3
    echo ready >&3
    while read -r name <&3; do
        (
            sh "/run/exchange/$name/job" >"/run/exchange/$name/output" 2>&1 </dev/null 3>&-
            echo $? >"/run/exchange/$name/exit-code"
            echo "$name" >&3
        ) &
    done
}

interactive() { # checkout, home, TERM, rows, columns
    cd "$1" || return
    export HOME="$2" TERM="$3" PATH="$1/.venv/bin:$PATH"
    # A controlling terminal for Ctrl-C and job control; this shell started us with that signal ignored.
    exec setsid --ctty env --default-signal bash -c "stty rows $4 cols $5; exec bash -i" </dev/ttyS1 >/dev/ttyS1 2>&1
}

# `wait` also buries whoever was orphaned: a test may look whether a process is gone.
if [ "$2" = interactive ]; then
    shift 2
    interactive "$@" &
else
    serve "$1" &
fi
wait
echo o >/proc/sysrq-trigger
sleep 60
