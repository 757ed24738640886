// The question for the key, where a browser has not given it yet.
import { h, setText } from "./dom";
import { logIn } from "./feed";

export function loginForm(): HTMLElement {
  const key = h("input", { type: "password", id: "key", autocomplete: "current-password", required: true }) as HTMLInputElement;
  const wrong = h("p", { class: "trouble", role: "alert", hidden: true });
  const submit = async (event: Event) => {
    event.preventDefault();
    const answer = await logIn(key.value);
    setText(wrong, answer);
    wrong.hidden = answer === "";
    key.value = "";
  };
  return h(
    "form", { class: "empty", submit: (event: Event) => void submit(event) }, h("h2", {}, "Who reads here needs the key"),
    h("p", {}, "Once: this browser then keeps a cookie for a week."),
    h("p", { class: "choose login" }, h("label", { for: "key" }, "Key"), key, h("button", { type: "submit", class: "theme" }, "Read")), wrong,
  );
}
