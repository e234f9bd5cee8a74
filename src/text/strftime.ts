// Python's strftime in the C locale, for templates that print the date. Called by template.ts.
import { TemplateError } from "./py-values.ts";

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  ...["January", "February", "March", "April", "May", "June"],
  ...["July", "August", "September", "October", "November", "December"],
];

/** Formats a local time. @throws TemplateError for a directive that is not known. */
export function strftime(date: Date, format: string): string {
  const two = (n: number): string => String(n).padStart(2, "0");
  const hour12 = date.getHours() % 12 || 12;
  const startOfYear = Date.UTC(date.getFullYear(), 0, 1);
  const today = Date.UTC(date.getFullYear(), date.getMonth(), date.getDate());
  const dayOfYear = (today - startOfYear) / 86_400_000 + 1;
  return format.replace(/%(-?.)/gs, (whole, directive: string) => {
    switch (directive) {
      case "Y":
        return String(date.getFullYear());
      case "y":
        return two(date.getFullYear() % 100);
      case "m":
        return two(date.getMonth() + 1);
      case "-m":
        return String(date.getMonth() + 1);
      case "d":
        return two(date.getDate());
      case "-d":
        return String(date.getDate());
      case "e":
        return String(date.getDate()).padStart(2);
      case "B":
        return MONTHS[date.getMonth()]!;
      case "b":
        return MONTHS[date.getMonth()]!.slice(0, 3);
      case "A":
        return DAYS[date.getDay()]!;
      case "a":
        return DAYS[date.getDay()]!.slice(0, 3);
      case "H":
        return two(date.getHours());
      case "I":
        return two(hour12);
      case "-I":
        return String(hour12);
      case "M":
        return two(date.getMinutes());
      case "S":
        return two(date.getSeconds());
      case "p":
        return date.getHours() < 12 ? "AM" : "PM";
      case "j":
        return String(dayOfYear).padStart(3, "0");
      case "F":
        return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
      case "%":
        return "%";
      default:
        throw new TemplateError(`strftime_now: the directive ${whole} is not supported`);
    }
  });
}
