//! The synopsis of a manual page, with the values of options, which clap_mangen's leaves out.

use clap::builder::Str;
use clap::{Arg, ArgAction, Command};
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

/// Writes the synopsis: the options of the command, those of every command, then what it takes.
pub(super) fn render(roff: &mut Roff, command: &Command) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut line = vec![bold(name)];
    let visible = || command.get_arguments().filter(|argument| !argument.is_hide_set());
    let (global, local): (Vec<_>, Vec<_>) = visible()
        .filter(|argument| !argument.is_positional())
        .partition(|argument| is_global(argument));
    for argument in local.into_iter().chain(global) {
        line.push(roman(" "));
        line.extend(bracket(argument, render_option(argument)));
    }
    for argument in visible().filter(|argument| argument.is_positional()) {
        line.push(roman(" "));
        line.extend(bracket(argument, vec![render_value(argument)]));
    }
    if command.is_subcommand_required_set() {
        line.extend([roman(" "), italic("COMMAND")]);
    } else if command.has_subcommands() {
        line.extend([roman(" ["), italic("COMMAND"), roman("]")]);
    }
    roff.text(line);
}

fn is_global(argument: &Arg) -> bool {
    let by_clap = matches!(
        argument.get_action(),
        ArgAction::Help | ArgAction::HelpLong | ArgAction::HelpShort | ArgAction::Version
    );
    argument.is_global_set() || by_clap
}

/// In brackets where it may be left out.
fn bracket(argument: &Arg, inlines: Vec<Inline>) -> Vec<Inline> {
    if argument.is_required_set() {
        return inlines;
    }
    [vec![roman("[")], inlines, vec![roman("]")]].concat()
}

fn render_option(argument: &Arg) -> Vec<Inline> {
    let mut inlines = Vec::new();
    if let Some(short) = argument.get_short() {
        inlines.extend([bold(format!("-{short}")), roman("|")]);
    }
    let long = argument.get_long().unwrap_or_default();
    inlines.push(bold(format!("--{long}")));
    if argument.get_action().takes_values() {
        inlines.extend([roman(" "), render_value(argument)]);
    }
    inlines
}

fn render_value(argument: &Arg) -> Inline {
    let names: Vec<&str> =
        argument.get_value_names().unwrap_or_default().iter().map(Str::as_str).collect();
    let several = match (argument.get_value_delimiter(), argument.get_action()) {
        (Some(delimiter), _) => format!("{delimiter}..."),
        (None, ArgAction::Append) => "...".to_owned(),
        (None, _) => String::new(),
    };
    italic(format!("{}{several}", names.join(" ")))
}
