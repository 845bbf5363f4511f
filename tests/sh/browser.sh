# shellcheck shell=bash
# Chromium and its driver, for the tests of the console. Sourced by tests/run, after common.sh.

# Tests start both by themselves, each a pair of its own. A driver of one's own: TOWER_INBOX_TEST_CHROMEDRIVER.
need_browser() {
    if [ -z "${TOWER_INBOX_TEST_CHROMEDRIVER:-}" ]; then
        command -v chromedriver >/dev/null || install "Chromium and its driver" chromium chromium-driver
        TOWER_INBOX_TEST_CHROMEDRIVER=$(command -v chromedriver) || die "chromedriver was not found"
    fi
    export TOWER_INBOX_TEST_CHROMEDRIVER
}
