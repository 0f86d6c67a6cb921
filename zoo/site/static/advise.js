// What `zoo advise` does (zoo/advice/ranking.py), on the data of `zoo.advice.page_data()`. Tested against it.
window.ZooAdvise = (function () {
  "use strict";

  // To so many digits; exact halves go to the even digit, as Python rounds them.
  function round(value, digits) {
    const shown = Number(value.toFixed(digits));
    const halves = value * 2 ** (digits + 1);
    if (!Number.isInteger(halves) || halves % 2 === 0) return shown;
    const below = Math.floor(value * 10 ** digits);
    return (below % 2 === 0 ? below : below + 1) / 10 ** digits;
  }

  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

  // Answers to all questions, with defaults for what was not given.
  function complete(page, given) {
    const answers = {};
    const assumed = [];
    for (const question of page.questions) {
      const value = given[question.id];
      if (value === undefined || value === null) {
        answers[question.id] = question.default;
        assumed.push(question.id);
      } else {
        answers[question.id] = value;
      }
    }
    return { answers, assumed };
  }

  function matches(wanted, found) {
    const listed = (value) => (Array.isArray(value) ? value : [value]);
    return Object.entries(wanted).every(([key, value]) => listed(value).includes(found[key]));
  }

  function reason(rule, known) {
    const text = rule.reason.trim().split(/\s+/).join(" ").replace(/\{(\w+)(:,)?\}/g, (_, key, comma) =>
      comma ? known[key].toLocaleString("en-US") : String(known[key]));
    return { rule: rule.id, text, points: rule.points || 0, source: rule.source };
  }

  // The rows of a table that count for these answers.
  function counted(table, answers) {
    const rows = table.rows;
    if (answers.rotation === "invariant" && rows.some((row) => row.kind === "turned")) {
      return rows.filter((row) => row.kind === "turned");
    }
    if (answers.size === "changing") {
      const changed = rows.filter((row) => row.kind === "changed" && row.times <= answers.times);
      if (changed.length) return changed;
    }
    return rows.filter((row) => row.kind === "trained");
  }

  const columns = (rows) => new Map(rows.map((row) => [JSON.stringify([row.size, row.condition || ""]), row.value]));
  const plain = (row) => Object.keys(row.options).length === 0;

  // Encoding -> mean, gap to the best one and the extension that did best.
  function gaps(table, answers, left) {
    const settings = new Map();
    for (const row of counted(table, answers).filter(plain)) {
      const key = JSON.stringify([row.encoding, row.extend]);
      if (!settings.has(key)) settings.set(key, []);
      settings.get(key).push(row);
    }
    const wanted = new Set([...settings.values()].flatMap((rows) => [...columns(rows).keys()]));
    const sign = table.lower ? -1 : 1;
    const best = new Map();
    for (const rows of settings.values()) {
      const found = columns(rows);
      if (found.size !== wanted.size) continue;
      const { encoding, extend, metric } = rows[0];
      const own = mean([...found.values()]);
      if (!best.has(encoding) || sign * own > sign * best.get(encoding).mean) {
        best.set(encoding, { metric, mean: own, extend, seeds: Math.min(...rows.map((row) => row.seeds)) });
      }
    }
    for (const name of [...best.keys()]) if (!left.has(name) && name !== "none") best.delete(name);
    const those = [...best].filter(([name]) => left.has(name));
    if (!those.length) return new Map();
    const first = Math.max(...those.map(([, one]) => sign * one.mean));
    for (const one of best.values()) {
      const gap = first - sign * one.mean;
      one.gap = round(table.lower ? (100 * gap) / Math.abs(first) : gap, 2);
      one.mean = round(one.mean, 3);
    }
    return best;
  }

  // The gap that stands for an encoding without measurement.
  function unmeasuredGap(found) {
    const control = found.filter((table) => table.has("none")).map((table) => table.get("none").gap);
    if (control.length) return mean(control);
    return Math.max(0, ...found.flatMap((table) => [...table.values()].map((one) => one.gap)));
  }

  function optionsTried(name, answers, tables) {
    const tried = [];
    for (const table of tables) {
      const rows = counted(table, answers).filter((row) => row.encoding === name && !plain(row));
      for (const key of new Set(rows.map((row) => JSON.stringify(row.options)))) {
        const own = rows.filter((row) => JSON.stringify(row.options) === key);
        const value = round(mean([...columns(own).values()]), 3);
        tried.push({ table: table.id, options: own[0].options, mean: value, seeds: own[0].seeds });
      }
    }
    return tried;
  }

  // Two standard deviations of the difference of two single runs, where there are spreads over seeds.
  function noiseOf(tables, answers) {
    const rows = tables.flatMap((table) => counted(table, answers));
    const spreads = rows.map((row) => row.std).filter((std) => std !== null);
    return spreads.length ? round(2 * Math.sqrt(2 * mean(spreads.map((std) => std ** 2))), 2) : null;
  }

  function notesOf(answers, known, unmeasured, noise) {
    const notes = [];
    const one = (value) => round(value, 1).toFixed(1);
    if (!known) {
      notes.push("We have no measurements on such tokens: the order follows the rules alone.");
    } else if (unmeasured) {
      notes.push("Encodings without a measurement on such tokens count as "
        + `${one(unmeasured)} points behind the best, as no positions do.`);
    }
    if (noise !== null) {
      notes.push(`Differences up to ${one(noise)} points are within the spread of single runs over seeds.`);
    } else if (known) {
      notes.push("One run each: small differences mean little.");
    }
    if (answers.phase === "inference") {
      notes.push("Only encodings whose weights exist are left; `zoo.load` cannot change the encoding of weights.");
    }
    return notes;
  }

  function commandsOf(page, start, extend, answers) {
    const lines = [...start.commands[answers.phase]];
    const measure = page.measure[answers.tokens];
    if (answers.phase === "training" && measure && answers.size === "changing") {
      lines.push(measure + (extend ? ` --extend ${extend}` : ""));
    }
    return lines;
  }

  function advise(page, given) {
    const { answers, assumed } = complete(page, given);
    const starts = page.starts[answers.tokens][answers.rotation] || page.starts[answers.tokens].no;
    const left = new Map();
    const sources = new Map();
    const excluded = [];
    for (const [name, facts] of Object.entries(page.properties[answers.tokens])) {
      const models = starts[name].models;
      const known = {
        ...facts,
        weights: models.length ? models[0].weights : "none",
        beyond_fold: facts.fold_side !== null && answers.side > facts.fold_side,
      };
      const rules = page.rules.filter((rule) => matches(rule.answers || {}, answers) && matches(rule.encoding, known));
      const out = rules.filter((rule) => rule.exclude).map((rule) => reason(rule, known));
      sources.set(name, facts.source);
      if (out.length) excluded.push({ encoding: name, reasons: out });
      else left.set(name, rules.map((rule) => reason(rule, known)));
    }
    const tables = Object.values(page.tables).filter((table) => table.tokens.includes(answers.tokens));
    const counting = tables.filter((table) => !table.shown_only);
    const every = new Map(tables.map((table) => [table.id, gaps(table, answers, left)]));
    const known = counting.map((table) => every.get(table.id));
    const unmeasured = unmeasuredGap(known);
    const ranked = [...left].map(([name, reasons]) => {
      const own = known.filter((table) => table.has(name)).map((table) => table.get(name));
      const judged = reasons.reduce((sum, one) => sum + one.points, 0);
      const extend = own.map((one) => one.extend).find(Boolean) || null;
      return {
        encoding: name,
        points: round(judged - (own.length ? mean(own.map((one) => one.gap)) : unmeasured), 2),
        measured: tables.filter((table) => every.get(table.id).has(name)).map((table) =>
          ({ table: table.id, counts: counting.includes(table), ...every.get(table.id).get(name) })),
        reasons,
        extend,
        options_tried: optionsTried(name, answers, tables),
        models: starts[name].models,
        commands: commandsOf(page, starts[name], extend, answers),
        source: sources.get(name),
      };
    });
    const byName = (a, b) => (a.encoding < b.encoding ? -1 : 1);
    ranked.sort((a, b) => b.points - a.points || !a.measured.length - !b.measured.length || byName(a, b));
    const noise = noiseOf(counting, answers);
    ranked.forEach((one, place) => {
      one.rank = place + 1;
      one.level_with_first = noise === null ? null : ranked[0].points - one.points <= noise;
    });
    const some = known.some((table) => table.size > 0);
    return { answers, assumed, ranked, excluded, tables, notes: notesOf(answers, some, unmeasured, noise) };
  }

  return { advise, round };
})();
