"use strict";
// What the words of every page mean, with units; the page has a <details id="glossary">.

const GLOSSARY = [
  ["margin", "how many mistakes in a row (random actions, unless a study is about others) the agent can afford from this step on"],
  ["loss", "what mistakes cost on average, compared with the agent alone: discounted reward, unless a study is about something else"],
  ["tolerance ζ", "the loss you accept (in units of the loss)"],
  ["confidence β", "the share of moments at which the loss stays within the tolerance up to the margin (0 to 1)"],
  ["proxy", "a number computed from the agent's scores at each step; where it is high, mistakes tend to cost more (in units of the scores)"],
  ["regret", "how much more the best single action would have brought than the agent's own (in units of reward)"],
  ["stakes", "how much the best single action is above the average one: regret plus what one random action costs"],
];

{
  const list = document.createElement("dl"), title = document.createElement("summary");
  title.textContent = "What the words mean";
  for (const [word, meaning] of GLOSSARY) {
    const name = document.createElement("dt"), text = document.createElement("dd");
    name.textContent = word;
    text.textContent = meaning;
    list.append(name, text);
  }
  document.getElementById("glossary").append(title, list);
}
