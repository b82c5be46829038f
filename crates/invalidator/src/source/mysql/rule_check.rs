//! Compares rules with a server: its tables, and what its log will have of them.

use super::{
    catalogue::{self, Catalogue, Declared, quote},
    column_type::ColumnType,
    connection::{MysqlConnection, text},
    options::MysqlOptions,
    rows::LogColumn,
    server_check::{Server, variables},
    unsafe_setting::UnsafeSetting,
};
use crate::{
    SourceError,
    rules::{BoundRule, Column, ProblemKind, Refused, Rule, RuleProblem, Rules, Template},
};
use lookaside_client::Network;

/// The problems of `rules` with the server that `options` name.
pub async fn check_rules(
    network: &dyn Network,
    options: &MysqlOptions,
    rules: &Rules,
) -> Result<Vec<RuleProblem>, SourceError> {
    let mut connection = MysqlConnection::open(network, options).await?;
    let variables = variables(&mut connection).await?;
    let value = |name: &str| variables.get(name).map_or("", String::as_str);
    let catalogue = catalogue::load(&mut connection, rules).await?;
    let account = connection.query_one("SELECT CURRENT_USER()").await?.unwrap_or_default();
    let account = quote_account(&account);
    let mut problems = check_log(value("binlog_format"), value("binlog_row_metadata"), options);
    let logs_foreign_keys = logs_foreign_keys(&mut connection).await?;
    for rule in rules.iter() {
        check_rule(rule, &catalogue, &account, &mut problems);
        check_image(rule, &catalogue, value("binlog_row_image"), options, &mut problems);
        if catalogue.contains_key(&rule.table) && !logs_foreign_keys {
            check_foreign_keys(&mut connection, rule, &mut problems).await?;
        }
    }
    Ok(problems)
}

/// The settings for which a start would be refused, or would warn. Each is a warning here, as it says nothing against
/// the rules.
pub async fn check_settings(network: &dyn Network, options: &MysqlOptions) -> Result<Vec<RuleProblem>, SourceError> {
    let mut connection = MysqlConnection::open(network, options).await?;
    let warnings = match Server::inspect_all(&mut connection, options).await {
        Ok(server) => server.warnings,
        Err(SourceError::UnsafeSettings { why } | SourceError::Unusable { why }) => {
            vec![format!("lookaside-invalidator would not start: {why}")]
        }
        Err(error) => return Err(error),
    };
    Ok(warnings.into_iter().map(|why| RuleProblem { table: None, kind: ProblemKind::Warning, why }).collect())
}

/// Fails if the log lacks what the rules in use need: rows that are read from now on may be inexpressible.
pub async fn check_log_has_all(connection: &mut MysqlConnection, options: &MysqlOptions) -> Result<(), SourceError> {
    let rules = options.row_rules.current();
    if rules.is_empty() {
        return Ok(());
    }
    let variables = variables(connection).await?;
    let value = |name: &str| variables.get(name).map_or("", String::as_str);
    let mut problems = check_log(value("binlog_format"), value("binlog_row_metadata"), options);
    let image = value("binlog_row_image");
    if may_lack_values(image) {
        let catalogue = catalogue::load(connection, &rules).await?;
        rules.iter().for_each(|rule| check_image(rule, &catalogue, image, options, &mut problems));
    }
    match problems.iter().find(|problem| problem.kind == ProblemKind::LogLacks) {
        Some(problem) => Err(SourceError::UnsafeSettings { why: problem.to_string() }),
        None => Ok(()),
    }
}

/// The consequence of `setting` for rules.
fn kind_of(setting: UnsafeSetting, options: &MysqlOptions) -> ProblemKind {
    match options.accepted.contains(&setting) {
        true => ProblemKind::Warning,
        false => ProblemKind::LogLacks,
    }
}

fn check_log(format: &str, metadata: &str, options: &MysqlOptions) -> Vec<RuleProblem> {
    let mut problems = Vec::new();
    let mut add = |kind, why: String| problems.push(RuleProblem { table: None, kind, why });
    if !matches!(format, "ROW" | "") {
        add(
            ProblemKind::LogLacks,
            format!(
                "binlog_format is {format}, so the log has statements instead of rows; SET GLOBAL binlog_format = 'ROW'"
            ),
        );
    }
    if metadata != "FULL" {
        let present = if metadata.is_empty() { "missing" } else { metadata };
        let setting = UnsafeSetting::BinlogRowMetadata;
        add(
            kind_of(setting, options),
            format!(
                "binlog_row_metadata is {present}, so the log has no names of columns, and an ALTER TABLE that exchanges \
                 two would give rows before it wrong keys: SET GLOBAL binlog_row_metadata = 'FULL'; {}",
                setting.acceptance()
            ),
        );
    }
    problems
}

/// An account as statements have it; `name` is what `CURRENT_USER()` returns. A user name may have the separator, too.
fn quote_account(name: &str) -> String {
    let (user, host) = name.rsplit_once('@').unwrap_or((name, "%"));
    format!("'{}'@'{}'", user.replace('\'', "''"), host.replace('\'', "''"))
}

fn check_rule(rule: &Rule, catalogue: &Catalogue, account: &str, problems: &mut Vec<RuleProblem>) {
    let mut add = |kind, why: String| problems.push(RuleProblem { table: Some(rule.table.clone()), kind, why });
    let Some(declared) = catalogue.get(&rule.table) else {
        return add(
            ProblemKind::TableMissing,
            format!(
                "does not exist, or the account has no privilege on it: GRANT SELECT ON {} TO {account}",
                rule.table
            ),
        );
    };
    if let Err(Refused(reasons)) = BoundRule::bind(rule, &columns(declared)) {
        reasons.into_iter().for_each(|why| add(ProblemKind::RuleRefused, why));
    }
}

/// Whether old images of rows lack values with this `binlog_row_image`.
fn may_lack_values(row_image: &str) -> bool {
    matches!(row_image, "MINIMAL" | "NOBLOB")
}

/// Checks that old images have the columns of the rule's keys.
fn check_image(
    rule: &Rule,
    catalogue: &Catalogue,
    row_image: &str,
    options: &MysqlOptions,
    problems: &mut Vec<RuleProblem>,
) {
    let declared = catalogue.get(&rule.table).map_or(&[][..], Vec::as_slice);
    for column in rule.templates.iter().flat_map(Template::columns) {
        let Some(declared) = declared.iter().find(|declared| declared.name.eq_ignore_ascii_case(column)) else {
            continue;
        };
        let may_be_left_out = row_image == "MINIMAL" || declared.is_blob();
        if may_lack_values(row_image) && may_be_left_out && !declared.is_primary {
            let setting = UnsafeSetting::BinlogRowImage;
            problems.push(RuleProblem {
                table: Some(rule.table.clone()),
                kind: kind_of(setting, options),
                why: format!(
                    "has column {column}, of which the log lacks the old value, as binlog_row_image is {row_image}; SET \
                     GLOBAL binlog_row_image = 'FULL'; {}",
                    setting.acceptance()
                ),
            });
        }
    }
}

fn columns(declared: &[Declared]) -> Vec<Column> {
    let column = |declared: &Declared| {
        let log_column = LogColumn { kind: 0, metadata: [0, 0] };
        ColumnType::new(declared, log_column, None, None).column(&declared.name)
    };
    declared.iter().map(column).collect()
}

/// Whether the log has rows that foreign keys change: if the server executes these itself, and not InnoDB below it. Older
/// versions do not have the variable.
async fn logs_foreign_keys(connection: &mut MysqlConnection) -> Result<bool, SourceError> {
    let sql = "SHOW GLOBAL VARIABLES WHERE Variable_name = 'innodb_native_foreign_keys'";
    let rows = connection.query(sql).await?;
    Ok(rows.first().and_then(|row| text(row, 1)).as_deref() == Some("OFF"))
}

/// Warns of the foreign keys by which InnoDB changes rows of the rule's table.
async fn check_foreign_keys(
    connection: &mut MysqlConnection,
    rule: &Rule,
    problems: &mut Vec<RuleProblem>,
) -> Result<(), SourceError> {
    let sql = format!(
        "SELECT CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE FROM information_schema.REFERENTIAL_CONSTRAINTS \
         WHERE CONSTRAINT_SCHEMA = {} AND TABLE_NAME = {}",
        quote(&rule.table.schema),
        quote(&rule.table.name)
    );
    for row in connection.query(&sql).await? {
        let changes_rows = |at| !matches!(text(&row, at).as_deref(), Some("RESTRICT" | "NO ACTION") | None);
        if changes_rows(1) || changes_rows(2) {
            let name = text(&row, 0).unwrap_or_default();
            problems.push(RuleProblem {
                table: Some(rule.table.clone()),
                kind: ProblemKind::Warning,
                why: format!(
                    "has the foreign key {name} with ON DELETE {} ON UPDATE {}: rows that it changes are not in the log; \
                     change them by statements, or give the referenced table a rule for their keys",
                    text(&row, 1).unwrap_or_default(),
                    text(&row, 2).unwrap_or_default(),
                ),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_quoted_as_a_statement_has_it() {
        for (name, quoted) in [
            ("lookaside@%", "'lookaside'@'%'"),
            ("o'hara@db.example", "'o''hara'@'db.example'"),
            ("a@b@10.0.%", "'a@b'@'10.0.%'"),
            ("@localhost", "''@'localhost'"),
        ] {
            assert_eq!(quote_account(name), quoted);
        }
    }
}
