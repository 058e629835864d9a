import { render } from "preact";
import { onSignedOut } from "./api";
import { BuildPage } from "./pages/build";
import { DashboardPage } from "./pages/dashboard";
import { LoginPage } from "./pages/login";
import { toLogin, useRoute } from "./route";
import "./style/all.css";

function App() {
  const route = useRoute();
  switch (route.page) {
    case "login":
      return <LoginPage next={route.next} />;
    case "build":
      // The key remounts the page for another build, so that no state of the previous one stays.
      return <BuildPage key={route.job} id={route.job} />;
    case "dashboard":
      return <DashboardPage />;
  }
}

onSignedOut(toLogin);
const root = document.getElementById("app");
if (root) render(<App />, root);
