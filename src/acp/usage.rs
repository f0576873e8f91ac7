//! Reads `usage_update` (session/update): tokens in the context, and what the session has cost.
//!
//! Each field by itself: one that makes no sense is as if it were absent.

use serde_json::Value;
use serde_json::value::RawValue;

use super::event::{Usage, cut};

/// How much of a currency's code is kept.
const CURRENCY_BYTES_MAX: usize = 16;

/// What a `usage_update` tells; `None` if it is no object.
#[must_use]
pub fn read(update: &RawValue) -> Option<Usage> {
    let value: Value = serde_json::from_str(update.get()).ok()?;
    let fields = value.as_object()?;
    let cost = fields.get("cost");
    let currency = cost.and_then(|cost| cost["currency"].as_str());
    Some(Usage {
        used: fields.get("used").and_then(Value::as_u64),
        size: fields.get("size").and_then(Value::as_u64),
        cost: cost.and_then(|cost| cost["amount"].as_f64()),
        currency: currency.map(|code| cut(code, CURRENCY_BYTES_MAX).to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(json: &str) -> Option<Usage> {
        read(&RawValue::from_string(json.to_owned()).unwrap())
    }

    #[test]
    fn what_makes_no_sense_hides_nothing_else() {
        let found = usage(r#"{"used":-5,"size":200,"cost":{"amount":0.25,"currency":"USD"}}"#);
        let wanted = Usage {
            used: None,
            size: Some(200),
            cost: Some(0.25),
            currency: Some("USD".to_owned()),
        };
        assert_eq!(found, Some(wanted));
        let found = usage(r#"{"used":7,"cost":"much"}"#);
        assert_eq!(found, Some(Usage { used: Some(7), ..Usage::default() }));
        assert_eq!(usage("[1]"), None);
    }
}
