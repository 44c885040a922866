// Texts of the page whose contrast to their ground is below 4.5 : 1 (WCAG 2.1, 1.4.3), with the ratio.
(() => {
  const channels = (color) => (color.match(/[\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const groundOf = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const ground = channels(getComputedStyle(at).backgroundColor);
      if (ground.length === 3 || ground[3] > 0.99) return ground;
    }
    return [255, 255, 255];
  };
  const faint = new Set();
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.getClientRects().length || ['SCRIPT', 'STYLE', 'OPTION'].includes(node.tagName)) continue;
    const style = getComputedStyle(node);
    const inChart = node instanceof SVGElement;
    const [a, b] = [luminance(channels(inChart ? style.fill : style.color)), luminance(groundOf(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) faint.add(`${ratio.toFixed(2)} ${node.tagName}.${node.getAttribute('class') || ''} ${node.textContent.trim().slice(0, 30)}`);
  }
  return [...faint];
})()
