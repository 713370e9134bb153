// Where the page about the API begins.

import { tellDefects } from "./lib/defects.js";
import { speak } from "./lib/i18n.js";
import { applyTheme, chosenLanguage, chosenTheme } from "./lib/settings.js";
import { showDocs } from "./views/docs_page.js";

tellDefects();
applyTheme(chosenTheme());
speak(chosenLanguage());
void showDocs(/** @type {HTMLElement} */ (document.getElementById("app")));
