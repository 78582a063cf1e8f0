//! The text of `--help`: short, with what all commands share in `onload-ctk help environment`.

use clap::builder::{PossibleValue, Resettable};
use clap::{Arg, Command};

use crate::layout::format_paragraph;

const ENVIRONMENT: &str = "environment";
const TEMPLATE: &str = "{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";
const REFERENCE: &str = "Global options and environment variables: onload-ctk help environment";
/// The width that clap is limited to, too.
const WIDTH: usize = 100;
const INDENT: &str = "  ";

/// Shortens the help of a command line and adds the topic `environment` to it.
pub(crate) fn shorten(command: Command) -> Command {
    let topic = Command::new(ENVIRONMENT)
        .hide(true)
        .arg_required_else_help(true)
        .override_help(describe_environment(&command));
    let mut command = shorten_command(command).subcommand(topic);
    // Global options are copied to the subcommands here. Only the program's own help lists them.
    command.build();
    command.mut_subcommands(hide_global_options)
}

fn shorten_command(command: Command) -> Command {
    let description = command.get_long_about().or(command.get_about()).cloned().unwrap_or_default();
    let notes = command.get_after_long_help().map(|notes| format!("{notes}\n")).unwrap_or_default()
        + REFERENCE;
    // clap separates options by empty lines if any text has a long form.
    command
        .long_about(Resettable::Reset)
        .after_long_help(Resettable::Reset)
        .before_help(description)
        .after_help(notes)
        .help_template(TEMPLATE)
        .mut_args(|argument| list_values(argument.hide_env(true)))
        .mut_subcommands(shorten_command)
}

/// Lists the values of an option behind its help. clap gives a line to each value that has a help.
fn list_values(argument: Arg) -> Arg {
    let values = argument.get_possible_values();
    let is_listed = argument.get_action().takes_values() && !argument.is_hide_possible_values_set();
    if !is_listed || values.iter().all(|value| value.get_help().is_none()) {
        return argument;
    }
    let names: Vec<&str> = values.iter().map(PossibleValue::get_name).collect();
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    argument.help(format!("{help} [{}]", names.join(", "))).hide_possible_values(true)
}

fn hide_global_options(command: Command) -> Command {
    command
        .mut_args(|argument| {
            let is_global = argument.is_global_set();
            argument.hide(is_global)
        })
        .mut_subcommands(hide_global_options)
}

fn describe_environment(root: &Command) -> String {
    let mut text = "Global options, which every command accepts:\n\n".to_owned();
    let options = root.get_arguments().filter(|argument| argument.is_global_set()).map(|option| {
        let help = option.get_help().map(ToString::to_string).unwrap_or_default();
        (format_option(option), help)
    });
    write_columns(&mut text, &options.collect::<Vec<_>>());
    text += "\n";
    text += &format_paragraph(
        "",
        "",
        "Each option has an environment variable. An option takes precedence over its variable, and the variable over config.toml. The variable of an option without a value accepts true, yes, on and 1, or false, no, off and 0.",
        Some(WIDTH),
    );
    text += "\n";
    let mut variables = Vec::new();
    list_variables(root, "", &mut variables);
    variables.push(("COLUMNS".to_owned(), "width of the output".to_owned()));
    variables.push(("NO_COLOR".to_owned(), "print no colours".to_owned()));
    write_columns(&mut text, &variables);
    text
}

/// Formats an option as `-v, --verbose` or `--color <WHEN>`. clap does so only for a command that is built.
fn format_option(option: &Arg) -> String {
    let short = option.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let long = option.get_long().unwrap_or_default();
    let has_value = option.get_action().takes_values();
    let values: String = option
        .get_value_names()
        .filter(|_| has_value)
        .unwrap_or_default()
        .iter()
        .map(|value| format!(" <{value}>"))
        .collect();
    format!("{short}--{long}{values}")
}

/// Appends each variable with its option, such as `cdi generate --diff`.
fn list_variables(command: &Command, words: &str, variables: &mut Vec<(String, String)>) {
    for argument in command.get_arguments() {
        let (Some(variable), Some(flag)) = (argument.get_env(), argument.get_long()) else {
            continue;
        };
        variables.push((variable.to_string_lossy().into_owned(), format!("{words}--{flag}")));
    }
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        list_variables(subcommand, &format!("{words}{} ", subcommand.get_name()), variables);
    }
}

fn write_columns(text: &mut String, rows: &[(String, String)]) {
    let width = rows.iter().map(|(first, _)| first.len()).max().unwrap_or(0);
    for (first, second) in rows {
        text.push_str(&format!("{INDENT}{first:width$}{INDENT}{second}\n"));
    }
}
