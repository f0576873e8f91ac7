//! An agent's options as the planner sees them: without the secrets that the agent has.

use crate::options::{OptionState, Snapshot};
use crate::secret::Redactor;

/// The words for people in an agent's options. Ids and values stay: they are given back to the agent.
pub(super) fn without_secrets(redactor: &Redactor, mut options: Snapshot) -> Snapshot {
    if redactor.is_idle() {
        return options;
    }
    let clean = |text: &mut String| *text = redactor.text(text).into_owned();
    let modes = options.modes.iter_mut().flat_map(|modes| &mut modes.available);
    let listed = options.options.iter_mut().flat_map(|option| {
        clean(&mut option.name);
        match &mut option.state {
            OptionState::Select { choices, .. } => choices.as_mut_slice(),
            OptionState::Boolean { .. } => &mut [],
        }
    });
    for choice in modes.chain(listed) {
        clean(&mut choice.name);
        choice.group.iter_mut().chain(&mut choice.description).for_each(clean);
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Choice, LiveOption, Setter};
    use crate::secret::Secret;

    #[test]
    fn names_are_told_without_secrets_and_values_as_they_are() {
        let redactor = Redactor::default();
        let secret = "zebra-secret-0042";
        let choice = Choice {
            value: secret.to_owned(),
            name: format!("the {secret}"),
            group: None,
            description: Some(secret.to_owned()),
        };
        let state = OptionState::Select { current: secret.to_owned(), choices: vec![choice] };
        let option = LiveOption {
            id: secret.to_owned(),
            name: secret.to_owned(),
            category: None,
            state,
            setter: Setter::ConfigOption,
        };
        let offered = Snapshot { options: vec![option], modes: None };
        assert_eq!(without_secrets(&redactor, offered.clone()), offered, "nothing is secret yet");
        let _lease = redactor.hold([Secret::new(secret.to_owned())]);
        let told = without_secrets(&redactor, offered);
        let option = &told.options[0];
        assert_eq!((option.id.as_str(), option.name.as_str()), (secret, "[redacted]"));
        let OptionState::Select { choices, .. } = &option.state else { panic!("{option:?}") };
        assert_eq!(choices[0].value, secret);
        assert_eq!(choices[0].name, "the [redacted]");
        assert_eq!(choices[0].description.as_deref(), Some("[redacted]"));
    }
}
