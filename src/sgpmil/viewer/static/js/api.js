// Requests to the server. An error is one sentence.

export class ApiError extends Error {
  constructor(status, text, content) {
    super(text);
    this.status = status;
    this.content = content;
  }
}

async function answer(response) {
  if (response.ok) return response.json();
  const text = await response.text();
  let content = null;
  try {
    content = JSON.parse(text);
  } catch {
    // A sentence of the guard, not JSON.
  }
  const detail = typeof content?.detail === "string" ? content.detail : null;
  throw new ApiError(response.status, detail ?? (content ? "The server did not understand." : text), content);
}

export async function get(path, query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false);
  const text = new URLSearchParams(pairs).toString();
  return answer(await fetch(text ? `${path}?${text}` : path));
}

export async function put(path, body) {
  return answer(
    await fetch(path, {
      method: "PUT",
      headers: { "content-type": "application/json", "x-sgpmil": "1" },
      body: JSON.stringify(body),
    }),
  );
}
