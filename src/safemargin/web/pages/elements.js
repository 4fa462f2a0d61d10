"use strict";
// Elements of the page: what the pages of a fleet and of its log share.

const byId = name => document.getElementById(name);
const make = (tag, name = "", text = "") => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text) element.textContent = text;
  return element;
};
