export const en = {
  "sweep.of": "Sweep: {name}",
  "sweep.open": "Sweep",
  "sweep.open.title": "Progress of all runs of this list",
  "sweep.list": "Show as list",
  "sweep.csv": "Download CSV",
  "sweep.rerun": "Run failed ones again",
  "sweep.rerun.note": "Each failed run is submitted again as a new run with the same labels, once a day at most. The failed runs stay.",
  "sweep.told": "{ended} of {all} runs ended ({share} %)",
  "sweep.told.least": "At least {ended} of at least {all} runs ended",
  "sweep.none": "No stored run has this label.",
  "sweep.rows": "The latest 50 failed runs, then the latest others. The CSV file has up to 10,000 runs.",
  "sweep.run": "Run",
  "sweep.error": "Error",
};

/** @type {Record<keyof typeof en, string>} */
export const ja = {
  "sweep.of": "スイープ: {name}",
  "sweep.open": "スイープ",
  "sweep.open.title": "この一覧のすべてのrunの進み具合",
  "sweep.list": "一覧で表示",
  "sweep.csv": "CSVをダウンロード",
  "sweep.rerun": "失敗したrunを再実行",
  "sweep.rerun.note": "失敗したrunごとに、同じラベルの新しいrunを投入します (1日に1回まで)。失敗したrunは残ります。",
  "sweep.told": "{all}件中{ended}件が終了 ({share}%)",
  "sweep.told.least": "{all}件以上のうち{ended}件以上が終了",
  "sweep.none": "このラベルのrunは保存されていません。",
  "sweep.rows": "失敗したrunの最新50件、続いてその他の最新のrunを表示します。CSVファイルには最大10,000件のrunが入ります。",
  "sweep.run": "run",
  "sweep.error": "エラー",
};
