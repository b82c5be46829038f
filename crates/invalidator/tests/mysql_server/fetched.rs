//! Servers that Debian's stable release lacks: `tests/fetch_database` puts them into a folder (`make install` does it).
//! The tests that need one are skipped where it is missing, and print one line, or fail if LOOKASIDE_EXPECTED_TOOLS has
//! its name, as in continuous integration.

use super::{template_of, user_argument};
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Once,
};

/// The program that runs MySQL's `mysqld`; `None` if there is none. `MYSQLD` names another.
pub fn mysqld() -> Option<String> {
    static NOTICE: Once = Once::new();
    std::env::var("MYSQLD").ok().filter(|program| !program.is_empty()).or_else(|| fetched("mysql", &NOTICE))
}

/// The program that runs a newer `mariadbd` than the installed one; `None` if there is none.
pub fn newer_mariadbd() -> Option<String> {
    static NOTICE: Once = Once::new();
    fetched("mariadb", &NOTICE)
}

fn fetched(name: &str, notice: &Once) -> Option<String> {
    let folder = std::env::var_os("LOOKASIDE_DATABASES")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/lookaside-databases")))?;
    let run = folder.join(name).join("run");
    if run.exists() {
        return Some(run.display().to_string());
    }
    let expected = std::env::var("LOOKASIDE_EXPECTED_TOOLS").unwrap_or_default();
    let is_expected = expected.split_whitespace().any(|tool| tool == name);
    assert!(!is_expected, "{} is missing: run tests/fetch_database {name}", run.display());
    notice.call_once(|| {
        // Not with eprintln, whose output the test harness hides while a test passes.
        let missing = format!("SKIPPED: tests need {}: run tests/fetch_database {name}\n", run.display());
        let _ = std::io::stderr().write_all(missing.as_bytes());
    });
    None
}

/// Where the files of the package of `program` lie.
fn base(program: &str) -> PathBuf {
    Path::new(program).parent().expect("a folder").join("root/usr")
}

/// The arguments by which a server finds them.
pub fn base_arguments(program: &str) -> Vec<String> {
    let base = base(program);
    vec![
        format!("--basedir={}", base.display()),
        format!("--plugin-dir={}", base.join("lib/mysql/plugin").display()),
        format!("--character-sets-dir={}", base.join("share/mariadb/charsets").display()),
        format!("--lc-messages-dir={}", base.join("share/mariadb").display()),
    ]
}

/// MySQL's plugins.
pub fn plugin_dir(program: &str) -> String {
    format!("--plugin-dir={}", base(program).join("lib/mysql/plugin").display())
}

/// An initialised data directory of MySQL.
pub fn mysql_template(mysqld: &str) -> PathBuf {
    template_of(mysqld, |data, temporary| {
        let mut command = Command::new(mysqld);
        command
            .env("TMPDIR", temporary)
            .args(["--no-defaults", "--initialize-insecure", super::SMALL_MYSQL, &user_argument()])
            .arg(format!("--datadir={}", data.display()));
        command
    })
}

/// An initialised data directory of a newer MariaDB. Its script needs an installed one.
pub fn mariadb_template(mariadbd: &str) -> PathBuf {
    template_of(mariadbd, |data, temporary| {
        std::fs::create_dir_all(data.join("mysql")).expect("a directory");
        let scripts = base(mariadbd).join("share/mariadb");
        let read = |name: &str| std::fs::read_to_string(scripts.join(name)).expect(name);
        let sql = [
            "USE mysql;\nSET @auth_root_socket = NULL;\nSET @skip_auth_anonymous = NULL;\n",
            &read("mariadb_system_tables.sql"),
            &read("mariadb_performance_tables.sql"),
            &read("mariadb_system_tables_data.sql"),
        ];
        let path = temporary.join("bootstrap.sql");
        std::fs::write(&path, sql.concat()).expect("written");
        let mut command = Command::new(mariadbd);
        command
            .env("TMPDIR", temporary)
            .args(["--no-defaults", "--bootstrap", "--innodb-log-file-size=8M", &user_argument()])
            .args(base_arguments(mariadbd))
            .arg(format!("--datadir={}", data.display()))
            .stdin(Stdio::from(std::fs::File::open(&path).expect("it was written")));
        command
    })
}
