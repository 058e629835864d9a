//! Calls that cannot be executed: unknown tools, or invalid inputs.

use tools::ErrorCode;

use super::Run;
use crate::model::Fault;

impl Run {
    /// Records an error for each, and counts responses without a valid call.
    pub(super) fn refuse_faulty(&mut self, faults: &[(String, Fault)]) {
        let calls = self.calls();
        let names = tools::NAMES.join(", ");
        let (mut refused, mut unfinished) = (0, false);
        for call in &calls {
            let fault = faults.iter().find(|(id, _)| *id == call.id).map(|(_, fault)| fault);
            let text = match fault {
                Some(Fault::Unfinished) => {
                    unfinished = true;
                    "Not executed: the answer was cut off before this call was complete. Make it again, in smaller pieces.".to_owned()
                }
                Some(Fault::Invalid { problem, begins }) => format!(
                    "Not executed: the input is not a JSON object ({problem}). It began with: {begins}\n{}",
                    fields(&call.name)
                ),
                None if !tools::NAMES.contains(&call.name.as_str()) => {
                    format!("[{}: unknown tool]\nThe tools are: {names}.", call.name)
                }
                None if !call.input.is_object() => {
                    format!("Not executed: the input is not a JSON object.\n{}", fields(&call.name))
                }
                None => continue,
            };
            if !matches!(fault, Some(Fault::Unfinished)) {
                refused += 1;
            }
            let code = if fault.is_some() { ErrorCode::InvalidInput } else { ErrorCode::UnknownTool };
            self.settle_call(call, code.as_str(), &text);
        }
        if calls.is_empty() {
            return;
        }
        let strikes = &mut self.state.strikes;
        strikes.format_errors = if refused == calls.len() { strikes.format_errors + 1 } else { 0 };
        strikes.unfinished = if unfinished { strikes.unfinished + 1 } else { 0 };
    }
}

/// The fields that a tool requires.
fn fields(tool: &str) -> String {
    let definitions = tools::definitions();
    let Some(definition) = definitions.iter().find(|definition| definition.name == tool) else { return String::new() };
    let properties = definition.input_schema["properties"].as_object();
    let names: Vec<&str> = properties.map(|fields| fields.keys().map(String::as_str).collect()).unwrap_or_default();
    format!("Fields of {tool}: {}; required: {}.", names.join(", "), definition.input_schema["required"])
}
