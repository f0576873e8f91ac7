//! What a scalar says, by the core schema of YAML 1.2 (YAML 1.2.2, section 10.3.2).

use saphyr_parser::{ScalarStyle, Tag};
use serde_json::{Number, Value};

/// The value of a scalar.
///
/// # Errors
///
/// What is wrong with it, and what was expected.
pub(super) fn resolve(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Value, String> {
    let Some(tag) = tag else {
        return if style == ScalarStyle::Plain { plain(text) } else { Ok(Value::from(text)) };
    };
    // The non-specific tag `!` makes a plain scalar text (YAML 1.2.2, section 6.9.1).
    if tag.handle.is_empty() && tag.suffix == "!" || tag.handle == "!" && tag.suffix.is_empty() {
        return Ok(Value::from(text));
    }
    if !tag.is_yaml_core_schema() {
        return Err(format!("the tag {tag} is unknown, expected no tag"));
    }
    if tag.suffix == "str" {
        return Ok(Value::from(text));
    }
    let value = plain(text)?;
    let fits = match tag.suffix.as_str() {
        "null" => value.is_null(),
        "bool" => value.is_boolean(),
        "int" => value.is_i64() || value.is_u64(),
        "float" => value.is_number(),
        _ => return Err(format!("the tag !!{} is unknown, expected no tag", tag.suffix)),
    };
    if fits { Ok(value) } else { Err(format!("{text:?} is no {}, as its tag says", tag.suffix)) }
}

fn plain(text: &str) -> Result<Value, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        "true" | "True" | "TRUE" => return Ok(Value::Bool(true)),
        "false" | "False" | "FALSE" => return Ok(Value::Bool(false)),
        _ => {}
    }
    if is_decimal(text) {
        return integer(
            text,
            text.strip_prefix('+').unwrap_or(text).parse().ok(),
            text.parse().ok(),
        );
    }
    for (prefix, radix) in [("0o", 8), ("0x", 16)] {
        if let Some(digits) = text.strip_prefix(prefix)
            && !digits.is_empty()
            && digits.chars().all(|digit| digit.is_digit(radix))
        {
            return integer(text, None, u64::from_str_radix(digits, radix).ok());
        }
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return Err(format!("{text} is no number that a record can hold, expected a finite one"));
    }
    if is_float(unsigned) {
        return text.parse().ok().and_then(Number::from_f64).map(Value::Number).ok_or_else(|| {
            format!("{text} is too large for a number, quote it to have it as text")
        });
    }
    Ok(Value::from(text))
}

fn integer(text: &str, signed: Option<i64>, unsigned: Option<u64>) -> Result<Value, String> {
    match (signed, unsigned) {
        (Some(number), _) => Ok(Value::from(number)),
        (None, Some(number)) => Ok(Value::from(number)),
        (None, None) => Err(format!("{text} does not fit in 64 bits, quote it to have it as text")),
    }
}

/// `[-+]? [0-9]+`
fn is_decimal(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// `( \. [0-9]+ | [0-9]+ ( \. [0-9]* )? ) ( [eE] [-+]? [0-9]+ )?`
fn is_float(unsigned: &str) -> bool {
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    digits(whole)
        && fraction.is_none_or(digits)
        && (!whole.is_empty() || fraction.is_some_and(|fraction| !fraction.is_empty()))
        && exponent.is_none_or(is_decimal)
}
