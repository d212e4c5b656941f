// The state of the page is its address: a view can be shared, reloaded and gone back to.

export function state() {
  return Object.fromEntries(new URLSearchParams(location.search));
}

export function address(values) {
  const kept = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  const text = new URLSearchParams(kept).toString();
  return text ? `/?${text}` : "/";
}

// Go to another page.
export function go(values) {
  history.pushState(null, "", address(values));
  dispatchEvent(new Event("sgpmil:go"));
}

// Change the state of this page, without a step to go back to.
export function note(changes) {
  history.replaceState(history.state, "", address({ ...state(), ...changes }));
}

// `values` are a state, or a function of it for a link that keeps what is chosen when it is clicked.
export function link(values, properties, h, ...children) {
  const target = () => (typeof values === "function" ? values(state()) : values);
  const refresh = (event) => (event.currentTarget.href = address(target()));
  return h(
    "a",
    {
      ...properties,
      href: address(target()),
      onpointerdown: refresh, // for another window
      onclick: (event) => {
        refresh(event);
        if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
        event.preventDefault();
        go(target());
      },
    },
    ...children,
  );
}
