// Where the page begins.

import { keepAsking } from "./lib/connection.js";
import { tellDefects } from "./lib/defects.js";
import { speak } from "./lib/i18n.js";
import { keepAges } from "./lib/parts.js";
import { applyTheme, chosenLanguage, chosenTheme } from "./lib/settings.js";
import { Shell } from "./views/shell.js";

tellDefects();
applyTheme(chosenTheme());
speak(chosenLanguage());
keepAges();
new Shell(/** @type {HTMLElement} */ (document.getElementById("app"))).begin();
keepAsking();
