# shellcheck shell=bash
# Private PostgreSQL and MariaDB servers in a temporary directory. Sourced by tests/run, after common.sh.
#
# A server started here is a direct child of the script, known by its process id, and the only thing that
# `stop_servers` ever signals. Each gets an account of its own that may do everything, with a password of
# this run, on a loopback port of this run.

state=          # the temporary directory
server_user=    # who the servers run as; empty: whoever calls
server_pids=()  # "pid signal name", in order of starting
ulimit -n "$(ulimit -Hn)" 2>/dev/null || true # 400 connections need more than the usual 1024 files

make_state() {
    local base=${TMPDIR:-/tmp}
    if [ "$(id -u)" -eq 0 ]; then
        # Neither server runs as root. `nobody` is everywhere and owns nothing.
        command -v setpriv >/dev/null || die "the servers do not run as root: setpriv (util-linux) is needed to run them as nobody"
        server_user=nobody
        as_server test -x "$base" || base=/tmp
    fi
    # A Unix socket's path has room for about 100 bytes.
    [ ${#base} -le 60 ] || base=/tmp
    remove_leftovers "$base"
    state=$(mktemp -d "$base/tower-inbox-tests.XXXXXX")
    chmod 711 "$state"
    # Held while the script or one of its servers lives (they inherit it), so that another run can tell a
    # directory in use from one that a killed run left behind. Locked before it gets its name.
    if command -v flock >/dev/null; then
        exec 9>"$state/lock.new"
        flock -n 9
        mv "$state/lock.new" "$state/lock"
    fi
}

remove_leftovers() {
    local lock
    command -v flock >/dev/null || return 0
    for lock in "$1"/tower-inbox-tests.*/lock; do
        if [ -f "$lock" ] && [ -O "$lock" ] && flock -n "$lock" true; then
            say "removing ${lock%/lock}, left by a run that was killed"
            rm -rf -- "${lock%/lock}"
        fi
    done
}

# Runs a command as the servers' user.
as_server() {
    if [ -n "$server_user" ]; then
        setpriv --reuid="$server_user" --regid="$(id -g "$server_user")" --clear-groups -- "$@"
    else
        "$@"
    fi
}

server_directory() {
    mkdir -m 700 "$state/$1"
    if [ -n "$server_user" ]; then chown "$server_user" "$state/$1"; fi
}

# launch SIGNAL NAME COMMAND...: in the background, in a session of its own (a Ctrl-C is for the tests; the
# servers stop after them), and ended by the kernel if this script is killed outright.
launch() {
    local signal=$1 name=$2 prefix=()
    shift 2
    if command -v setsid >/dev/null; then prefix+=(setsid); fi
    if command -v setpriv >/dev/null; then prefix+=(setpriv --pdeathsig="$signal"); fi
    if [ -n "$server_user" ]; then
        prefix+=(--reuid="$server_user" --regid="$(id -g "$server_user")" --clear-groups)
    fi
    (cd "$state/$name" && exec "${prefix[@]}" "$@") </dev/null >>"$state/$name.log" 2>&1 &
    server_pids+=("$! $signal $name")
}

# Removes NAME from the servers to stop; for one that has ended by itself.
forget_server() {
    local entry kept=()
    for entry in "${server_pids[@]}"; do
        if [ "${entry##* }" != "$1" ]; then kept+=("$entry"); fi
    done
    server_pids=("${kept[@]}")
}

# A port of the loopback that nobody listens on, below the range that outgoing connections use. Somebody may
# take it before the server does: see `start_server`.
free_port() {
    local port
    while true; do
        port=$((20000 + RANDOM % 12000))
        if ! (: <>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            printf '%s' "$port"
            return
        fi
    done
}

# start_server NAME: launches `run_NAME PORT` and waits until `ask_NAME PORT` gets an answer; another port if
# the server ends (the port was taken meanwhile). The port is left in `server_port`.
start_server() {
    local name=$1 deadline pid
    for _ in 1 2 3; do
        server_port=$(free_port)
        : >"$state/$name.log"
        "run_$name" "$server_port"
        pid=$(server_pid "$name")
        deadline=$((SECONDS + 90))
        while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do
            if "ask_$name" "$server_port" >/dev/null 2>&1; then return 0; fi
            sleep 0.2
        done
        if kill -0 "$pid" 2>/dev/null; then break; fi
        forget_server "$name"
    done
    tail -n 20 "$state/$name.log" >&2
    die "$name did not start (its log is above)"
}

server_pid() {
    local entry
    for entry in "${server_pids[@]}"; do
        if [ "${entry##* }" = "$1" ]; then printf '%s' "${entry%% *}"; fi
    done
}

# True if every server that was started is still there; says which one is not, with the end of its log.
servers_alive() {
    local entry alive=true name
    for entry in "${server_pids[@]}"; do
        if ! kill -0 "${entry%% *}" 2>/dev/null; then
            name=${entry##* }
            alive=false
            say "$name ended during the tests; the end of its log:"
            tail -n 20 "$state/$name.log" >&2
        fi
    done
    $alive
}

# Each by the signal that makes it close connections and leave; by force after 20 seconds.
stop_servers() {
    local entry pid signal deadline=$((SECONDS + 20))
    for entry in "${server_pids[@]}"; do
        read -r pid signal _ <<<"$entry"
        kill -s "$signal" "$pid" 2>/dev/null || true
    done
    for entry in "${server_pids[@]}"; do
        pid=${entry%% *}
        while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
        kill -s KILL "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    server_pids=()
    if [ -n "$state" ]; then rm -rf -- "$state"; fi
    state=
}

new_password() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }

# --- PostgreSQL ------------------------------------------------------------------------------------------

# The newest server's directory. The distribution's own comes first: what is in PATH may be a wrapper.
find_postgres() {
    local found
    found=$(printf '%s\n' /usr/lib/postgresql/*/bin /usr/pgsql-*/bin | sort -V | tac | while read -r directory; do
        if [ -x "$directory/initdb" ] && [ -x "$directory/postgres" ] && [ -x "$directory/psql" ]; then
            printf '%s' "$directory"
            break
        fi
    done)
    if [ -z "$found" ] && command -v initdb >/dev/null && command -v postgres >/dev/null; then
        found=$(dirname "$(command -v initdb)")
    fi
    postgres_bin=$found
    [ -n "$found" ]
}

# What benches add to the command line of a server (words, split at spaces): memory, never durability.
postgres_settings=${TOWER_INBOX_POSTGRES_SETTINGS:-}
mysql_settings=${TOWER_INBOX_MYSQL_SETTINGS:-}

run_postgres() {
    local settings
    read -ra settings <<<"$postgres_settings"
    launch INT postgres "$postgres_bin/postgres" -D "$state/postgres/data" -p "$1" \
        -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=400 ${settings[@]+"${settings[@]}"}
}

ask_postgres() {
    PGPASSWORD=$postgres_password "$postgres_bin/psql" -X -w -h 127.0.0.1 -p "$1" -U tower_inbox -d postgres -c 'SELECT 1'
}

start_postgres() {
    find_postgres || { install PostgreSQL postgresql && find_postgres; } || die "PostgreSQL's initdb and postgres were not found"
    postgres_password=$(new_password)
    server_directory postgres
    printf '%s' "$postgres_password" | as_server tee "$state/postgres/password" >/dev/null
    # md5: SCRAM's thousands of rounds double the cost of a connection, and tests open many.
    (cd "$state/postgres" && as_server "$postgres_bin/initdb" -D "$state/postgres/data" -U tower_inbox --pwfile=password \
        --auth=md5 --encoding=UTF8 --locale=C --no-sync) >"$state/postgres.log" 2>&1 ||
        { cat "$state/postgres.log" >&2 && die "initdb failed"; }
    start_server postgres
    export TEST_POSTGRES_URL="postgres://tower_inbox:$postgres_password@127.0.0.1:$server_port/postgres"
    say "started $("$postgres_bin/postgres" --version) on port $server_port"
}

# Tests start their own, in front of the server of TEST_POSTGRES_URL, whoever started that.
need_pgbouncer() {
    local PATH=$PATH:/usr/sbin:/usr/local/sbin
    command -v pgbouncer >/dev/null || install PgBouncer pgbouncer
}

# --- MariaDB ---------------------------------------------------------------------------------------------

find_mariadb() {
    local PATH=$PATH:/usr/sbin:/usr/local/sbin:/usr/libexec
    mariadbd=$(command -v mariadbd) && mariadb_install=$(command -v mariadb-install-db) && mariadb=$(command -v mariadb)
}

install_mariadb() {
    # The servers' and clients' programs alone; older releases have them under other names only.
    if can_install && { apt-cache show mariadb-server-core >/dev/null 2>&1 || apt_quietly update; } &&
        apt-cache show mariadb-server-core >/dev/null 2>&1; then
        install MariaDB mariadb-server-core mariadb-client-core
    else
        install MariaDB mariadb-server
    fi
}

run_mysql() {
    local settings
    read -ra settings <<<"$mysql_settings"
    # utf8mb4 as in the distributions' configuration, which --no-defaults leaves out.
    launch TERM mysql "$mariadbd" --no-defaults --datadir="$state/mysql/data" --socket="$state/mysql/socket" \
        --pid-file="$state/mysql/pid" --tmpdir="$state/mysql" --bind-address=127.0.0.1 --port="$1" \
        --skip-name-resolve --character-set-server=utf8mb4 --max-connections=400 --init-file="$state/mysql/accounts.sql" \
        ${settings[@]+"${settings[@]}"}
}

ask_mysql() {
    MYSQL_PWD=$mysql_password "$mariadb" --no-defaults --protocol=tcp -h 127.0.0.1 -P "$1" -u tower_inbox -e 'SELECT 1'
}

start_mysql() {
    find_mariadb || { install_mariadb && find_mariadb; } || die "MariaDB's mariadbd and mariadb-install-db were not found"
    mysql_password=$(new_password)
    server_directory mysql
    # One account, with a password; those without one that the installation makes are removed.
    as_server tee "$state/mysql/accounts.sql" >/dev/null <<SQL
CREATE OR REPLACE USER tower_inbox@'127.0.0.1' IDENTIFIED BY '$mysql_password';
GRANT ALL ON *.* TO tower_inbox@'127.0.0.1' WITH GRANT OPTION;
DELETE FROM mysql.global_priv WHERE User IN ('', 'root');
FLUSH PRIVILEGES;
SQL
    (cd "$state/mysql" && as_server "$mariadb_install" --no-defaults --datadir="$state/mysql/data" --tmpdir="$state/mysql" \
        --auth-root-authentication-method=normal --skip-test-db --skip-name-resolve) >"$state/mysql.log" 2>&1 ||
        { cat "$state/mysql.log" >&2 && die "mariadb-install-db failed"; }
    start_server mysql
    export TEST_MYSQL_URL="mysql://tower_inbox:$mysql_password@127.0.0.1:$server_port/mysql"
    say "started $("$mariadbd" --no-defaults --version | sed 's/^[^ ]*\/mariadbd/mariadbd/; s/ *for .*//') on port $server_port"
}
