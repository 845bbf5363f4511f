// What the console does better with JavaScript: ages that go on, and pages that show what is there now. Everything
// works without it.
'use strict';

(() => {
  const AGE_EVERY = 10_000;
  const LOOK_EVERY = 10_000;

  const span = (seconds) => {
    if (seconds < 60) return `${seconds} s`;
    if (seconds < 3_600) return `${Math.floor(seconds / 60)} min`;
    if (seconds < 172_800) return `${Math.floor(seconds / 3_600)} h`;
    return `${Math.floor(seconds / 86_400)} d`;
  };

  // Ages are by the server's clock, which this one may be ahead of.
  const aheadOf = (part) => Date.now() - Number(part.dataset.now);
  const live = document.querySelector('#live');
  let ahead = live ? aheadOf(live) : 0;

  const age = () => {
    for (const time of document.querySelectorAll('time[data-ago]')) {
      const at = Date.parse(time.dateTime);
      if (Number.isNaN(at)) continue;
      const seconds = Math.round((Date.now() - ahead - at) / 1000);
      // What has happened is not to come, whoever's clock is ahead.
      const isToCome = seconds < 0 && time.dataset.ago !== 'past';
      time.textContent = isToCome ? `in ${span(-seconds)}` : `${span(Math.max(seconds, 0))} ago`;
    }
  };

  const stale = document.querySelector('#stale');
  let seen = new Date();
  // Nobody takes an old page for a new one.
  const STALE_AFTER = 60_000;
  const warn = (why) => {
    stale.textContent = `${why}: it shows what was at ${seen.toLocaleTimeString()}.`;
    stale.hidden = false;
  };

  // Nobody loses what he is selecting or filling in.
  const busy = () =>
    document.hidden ||
    (live.contains(document.activeElement) && document.activeElement.matches('input, select, textarea')) ||
    (document.getSelection() && !document.getSelection().isCollapsed);

  const open = () => [...live.querySelectorAll('details[open][id]')].map((details) => details.id);
  const stops = () => [...live.querySelectorAll('a, summary, button')];

  const look = async () => {
    if (busy()) {
      if (Date.now() - seen > STALE_AFTER) warn('This page is not loaded again while something in it is selected or filled in');
      return;
    }
    try {
      const answer = await fetch(location.href, { headers: { accept: 'text/html' }, redirect: 'error', cache: 'no-store' });
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      const fresh = new DOMParser().parseFromString(text, 'text/html').querySelector('#live');
      if (!fresh || busy()) return;
      const opened = new Set(open());
      for (const details of fresh.querySelectorAll('details[id]')) {
        if (opened.has(details.id)) details.open = true;
      }
      const focused = stops().indexOf(document.activeElement);
      ahead = aheadOf(fresh);
      live.replaceChildren(...fresh.childNodes);
      if (focused >= 0) stops()[focused]?.focus({ preventScroll: true });
      seen = new Date();
      stale.hidden = true;
    } catch {
      warn('This page could not be loaded again');
    }
  };

  setInterval(age, AGE_EVERY);
  if (live && 'live' in live.dataset) {
    setInterval(look, LOOK_EVERY);
    document.addEventListener('visibilitychange', look);
  }
})();
