# Which Python CI uses.
#
# The suite is bound by computing. Debian's Python is built with profile-guided and link-time optimization; one that
# pyenv built without being told so takes a quarter longer for the same (docs/inside/performance.md). Debian's is used in a
# directory of its own, as an agent does not show the system's to containers (docs/operate/agent.md, `container.harness`).
fast_python() {
    local system=/usr/bin/python3.11 library=/usr/lib/python3.11 own=$PWD/.python
    if [[ ! -x $own/bin/python3 ]]; then
        # Its package python3.11-venv brings ensurepip.
        if [[ ! -x $system || ! -d $library/ensurepip ]]; then
            command -v python3
            return
        fi
        mkdir -p "$own/bin" "$own/lib"
        cp -r "$library" "$own/lib/"
        cp "$system" "$own/bin/python3"
    fi
    echo "$own/bin/python3"
}
