export const en = {
  "attention.title": "Needs attention",
  "attention.danger": "Danger:",
  "attention.warning": "Warning:",
  "attention.well": "Nothing needs attention",
  "attention.old": "As of {at}",
  "attention.more": "{n} more",
  "attention.less": "Show fewer",
  "attention.hidden": "Dismissed: {n}. Show them again",
  "attention.dismiss": "Dismiss until it grows",
  "attention.spoken": "Needs attention: {n}. {first}",
};

/** @type {Record<keyof typeof en, string>} */
export const ja = {
  "attention.title": "要確認",
  "attention.danger": "危険:",
  "attention.warning": "注意:",
  "attention.well": "確認が必要な項目はありません",
  "attention.old": "{at}時点",
  "attention.more": "ほか{n}件",
  "attention.less": "表示を減らす",
  "attention.hidden": "非表示: {n}件。もう一度表示",
  "attention.dismiss": "悪化するまで非表示にする",
  "attention.spoken": "要確認: {n}件。{first}",
};
