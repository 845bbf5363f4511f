# shellcheck shell=bash
# What tests/run and .ci/run share: messages, packages, the crate's features. Sourced, never run.
[ "${BASH_VERSINFO[0]}" -ge 5 ] || { echo "$0 needs bash 5" >&2 && exit 1; }

# Progress goes to standard error: `tests/run --env` keeps standard output for its export lines.
say() { printf '==> %s\n' "$*" >&2; }

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# A mistake in the command line: one line, exit 2.
usage_error() {
    printf '%s: %s (see %s --help)\n' "${0##*/}" "$*" "$0" >&2
    exit 2
}

can_install() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }

apt_quietly() {
    # Another apt-get may be at work: wait for its lock instead of failing.
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o APT::Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@" </dev/null >/dev/null
}

# install WHAT PACKAGE...: from the distribution, or a message that says what to install.
install() {
    local what=$1
    shift
    can_install || die "$what is not installed, and only root on a system with apt-get gets it from here. Please install it (Debian's packages: $*)"
    say "installing $what ($*)"
    (
        # A package's own service is not wanted: servers are started here, privately. The distribution's switch
        # for that is a policy script; where there is one already it is left alone.
        policy=/usr/sbin/policy-rc.d
        if [ ! -e $policy ]; then
            trap 'rm -f $policy' EXIT
            printf '#!/bin/sh\nexit 101\n' >$policy
            chmod 755 $policy
        fi
        # The package lists may be absent or old: fetch them once if the first try fails.
        apt_quietly install -y --no-install-recommends "$@" 2>/dev/null ||
            { apt_quietly update && apt_quietly install -y --no-install-recommends "$@"; }
    ) || die "$what could not be installed ($*): see apt-get's message above"
}

# The alert rules of ops/ are tested by the tool that loads them.
need_promtool() { command -v promtool >/dev/null || install promtool prometheus; }

# The crate's features, one a line, `default` left out. Needs neither jq nor Python: the package's features are
# the first object of that name after its own heading (a dependency's are an array).
crate_features() {
    local metadata
    metadata=$(cargo metadata --no-deps --format-version 1) || die "cargo metadata failed"
    metadata=${metadata#*'{"name":"tower-inbox","version":'}
    metadata=${metadata#*'"features":{'}
    printf '%s' "${metadata%%\}*}" | grep -oE '"[^"]+":\[' | tr -d '":[' | grep -vx default || true
}
